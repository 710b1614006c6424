//! `Deferred`: the media of a ref, which is decoded once, by a flight that whoever asks joins.
//!
//! Owns how a decoder's parts become a flight. Locks here are held by attached threads only, for a
//! few instructions, so no fork finds one taken.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};
use safelight_core::flight::{Ending, Equals, Flight, Interest, Once};
use safelight_core::pool::{Job, Site};
use safelight_pixels::{Outcome, Request};

use crate::decode::PyDecodeRequest;
use crate::error::{BindingError, is_fault_of_media};
use crate::fork::RESIDENTS;
use crate::pixels::PyPixels;
use crate::pool::{
    Answer, Context, Object, PyJob, Raised, call, detached, ending_error, graph, wait,
    wait_unless_cycle, work_attached,
};

/// Key of the media, and the address of the decoder's scope, which the decoder keeps alive.
type Equal = (Vec<u8>, usize);

/// Decodes under way that equal refs may join, whichever request they are of.
pub(crate) static EQUALS: LazyLock<Arc<Equals<Equal, Answer>>> = LazyLock::new(|| {
    let equals = Arc::default();
    RESIDENTS.register(&equals);
    equals
});

thread_local! {
    /// The flight of the job that this thread runs: its ending answers `decode`.
    static BROUGHT: RefCell<Option<Arc<Flight<Answer>>>> = const { RefCell::new(None) };
}

/// A decode that has not succeeded yet, shared by the forks of a ref.
///
/// The media is kept as the attribute ``media`` of `memo`, which knows nothing of the decoder. The
/// decoder is dropped as soon as there is media.
#[pyclass(name = "Deferred", module = "safelight._safelight", frozen)]
pub(crate) struct PyDeferred {
    decoder: Mutex<Option<Py<PyAny>>>,
    memo: Py<PyAny>,
    key: Py<PyBytes>,
    once: Once<Answer>,
}

/// A flight that was joined.
struct Joined {
    wanted: Interest<Answer>,
    /// Whether it was started here.
    leads: bool,
    /// How much work its first part is, where that is known.
    pixels: u64,
}

impl PyDeferred {
    /// None once there is media.
    fn decoder(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.decoder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The media, once it is there.
    fn media(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if self.decoder().is_some() {
            return Ok(None);
        }
        self.memo.getattr(py, crate::name(py, "media")).map(Some)
    }

    /// Keep what the decode made; its answer, for equal refs to copy if `joined` of them wait.
    fn keep(&self, py: Python<'_>, media: PyResult<Bound<'_, PyAny>>, joined: usize) -> Answer {
        let kept = media.and_then(|media| {
            let decoder = self.decoder().as_ref().map(|decoder| decoder.clone_ref(py));
            // Before anybody may write to it.
            let answer = match &decoder {
                Some(decoder) if joined > 0 => adopt(decoder.bind(py), &media),
                _ => Ok(media.clone()),
            };
            self.memo.setattr(py, crate::name(py, "media"), media)?;
            let decoder = self.decoder().take();
            drop(decoder);
            answer
        });
        kept.map(|media| Object(media.unbind()))
            .map_err(|error| Raised::new(py, &error))
    }

    /// Join the decode under way, or one that is started here; none if there is media.
    fn join(slf: &Bound<'_, Self>, context: Option<&Context>) -> PyResult<Option<Joined>> {
        let (this, generation) = (slf.get(), RESIDENTS.generation());
        let joined = |(wanted, leads), pixels| Joined {
            wanted,
            leads,
            pixels,
        };
        if let Some(current) = this.once.join(generation, || None) {
            return Ok(Some(joined(current, 0)));
        }
        let Some(decoder) = this.decoder().as_ref().map(|each| each.clone_ref(slf.py())) else {
            return Ok(None);
        };
        let (own, pixels) = Self::start(slf, decoder.into_bound(slf.py()), context)?;
        // Dropped without the lock, where another thread was faster.
        let mut own = Some(own);
        let current = this.once.join(generation, || {
            this.decoder().is_some().then(|| own.take()).flatten()
        });
        Ok(current.map(|current| joined(current, pixels)))
    }

    /// A flight that nobody runs yet, and how many pixels native code makes in it.
    fn start(
        slf: &Bound<'_, Self>,
        decoder: Bound<'_, PyAny>,
        context: Option<&Context>,
    ) -> PyResult<(Interest<Answer>, u64)> {
        let py = slf.py();
        let equal = optional(&decoder, "scope")?
            .filter(|scope| !scope.is_none())
            .map(|scope| (slf.get().key.as_bytes(py).to_vec(), scope.as_ptr().addr()));
        if let Some(leader) = equal.as_ref().and_then(|equal| EQUALS.join(equal)) {
            return Ok((Self::follow(slf, decoder, leader), 0));
        }
        let (this, own) = (slf.clone().unbind(), decoder.clone().unbind());
        let shared = equal.clone();
        let close = move || shared.map_or(0, |equal| EQUALS.close(&equal));
        let (flight, pixels) = match native(&decoder) {
            Ok(Some((data, request))) => {
                let pixels = request.max_pixels;
                let flight = Flight::staged(Box::new(move |cancel| {
                    let decoded = match safelight_pixels::decode(&data, &request, cancel) {
                        Ok(Outcome::Cancelled) => return None,
                        Ok(Outcome::Decoded(picture)) => Ok(Some(picture)),
                        Ok(Outcome::Declined(_)) => Ok(None),
                        Err(error) => Err(PyErr::from(BindingError::from(error))),
                    };
                    Some(Box::new(move || {
                        work_attached(|py| {
                            // Where dropping it costs nothing: the thread is attached.
                            drop(data);
                            let media = decoded.and_then(|picture| {
                                let pixels = (picture.map(PyPixels::new),).into_pyobject(py)?;
                                call(
                                    &own.bind(py).getattr(crate::name(py, "finish"))?,
                                    &pixels,
                                    None,
                                )
                            });
                            drop(own);
                            this.get().keep(py, media, close())
                        })
                    }))
                }));
                (flight, pixels)
            }
            native => {
                let refused = native.err();
                let context = context.map(|context| context.clone_ref(py));
                let flight = Flight::new(Box::new(move |_| {
                    work_attached(|py| {
                        let media = match (refused, context) {
                            (Some(error), _) => Err(error),
                            (None, Some(context)) => (own.bind(py),)
                                .into_pyobject(py)
                                .and_then(|own| context.call(&own, None)),
                            (None, None) => call(own.bind(py), &PyTuple::empty(py), None),
                        };
                        drop(own);
                        this.get().keep(py, media, close())
                    })
                }));
                (flight, 0)
            }
        };
        let own = Interest::first(flight);
        match equal.and_then(|equal| EQUALS.join_or_insert(equal, &own)) {
            Some(leader) => Ok((Self::follow(slf, decoder, leader), 0)),
            None => Ok((own, pixels)),
        }
    }

    /// A flight that copies what an equal ref's makes.
    fn follow(
        slf: &Bound<'_, Self>,
        decoder: Bound<'_, PyAny>,
        leader: Interest<Answer>,
    ) -> Interest<Answer> {
        let (this, decoder) = (slf.clone().unbind(), decoder.unbind());
        Interest::first(Flight::follow(leader, move |ending| {
            work_attached(|py| {
                let media = match ending {
                    Some(Ending::Returned(Ok(Object(media)))) => {
                        adopt(decoder.bind(py), media.bind(py))
                    }
                    Some(Ending::Returned(Err(raised))) if is_fault_of_media(raised.bind(py)) => {
                        Err(raised.fresh(py))
                    }
                    // What stopped the other need not stop this one.
                    _ => call(decoder.bind(py), &PyTuple::empty(py), None),
                };
                drop(decoder);
                this.get().keep(py, media, 0)
            })
        }))
    }

    /// What an ended flight means for who asks here; none if it is to be asked for again.
    fn answer(
        &self,
        py: Python<'_>,
        ending: &Ending<Answer>,
        ran_here: bool,
    ) -> PyResult<Option<Py<PyAny>>> {
        if let Some(media) = self.media(py)? {
            return Ok(Some(media));
        }
        match ending {
            Ending::Returned(Err(raised)) if ran_here => Err(raised.original_error(py)),
            Ending::Returned(Err(raised)) => Err(raised.fresh(py)),
            Ending::Withdrawn => Ok(None),
            ending => Err(ending_error(ending)),
        }
    }
}

fn adopt<'py>(
    decoder: &Bound<'py, PyAny>,
    media: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let adopt = decoder.getattr(crate::name(decoder.py(), "adopt"))?;
    call(&adopt, &(media,).into_pyobject(decoder.py())?, None)
}

/// What native code is to decode, where the decoder says that it can.
fn native(decoder: &Bound<'_, PyAny>) -> PyResult<Option<(PyBackedBytes, Request)>> {
    let py = decoder.py();
    let Some(ask) = optional(decoder, "native_request")? else {
        return Ok(None);
    };
    let request = call(&ask, &PyTuple::empty(py), None)?;
    if request.is_none() {
        return Ok(None);
    }
    let request = request.cast_into::<PyDecodeRequest>()?.get().0;
    Ok(Some((
        decoder.getattr(crate::name(py, "data"))?.extract()?,
        request,
    )))
}

fn optional<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    match object.getattr(name) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_instance_of::<PyAttributeError>(object.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Call `hook`, whose `decode` is answered by `flight` where that has ended.
fn with_brought(
    py: Python<'_>,
    flight: &Arc<Flight<Answer>>,
    hook: Py<PyAny>,
    context: &Context,
) -> Answer {
    struct Restore(Option<Arc<Flight<Answer>>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            BROUGHT.set(self.0.take());
        }
    }
    let restore = Restore(BROUGHT.replace(Some(Arc::clone(flight))));
    let answer = (hook,)
        .into_pyobject(py)
        .and_then(|hook| context.call(&hook, None));
    drop(restore);
    match answer {
        Ok(media) => Ok(Object(media.unbind())),
        Err(error) => Err(Raised::new(py, &error)),
    }
}

#[pymethods]
impl PyDeferred {
    #[new]
    fn new(decoder: Py<PyAny>, memo: Py<PyAny>, key: Py<PyBytes>) -> Self {
        Self {
            decoder: Mutex::new(Some(decoder)),
            memo,
            key,
            once: Once::default(),
        }
    }

    /// The media, decoded here unless somebody does so already.
    fn decode(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let brought = BROUGHT.take();
        if let Some(ending) = brought
            .filter(|flight| this.once.is_latest(flight))
            .as_ref()
            .and_then(|flight| flight.ending())
            && let Some(media) = this.answer(py, ending, true)?
        {
            return Ok(media);
        }
        loop {
            let Some(Joined { wanted, leads, .. }) = Self::join(slf, None)? else {
                return this.memo.getattr(py, crate::name(py, "media"));
            };
            if let Some(leader) = wanted.leader() {
                wait_unless_cycle(py, leader)?;
            }
            let run = || graph().as_runner(|| wanted.run());
            let ran_here = if leads && !wanted.is_staged() {
                run()
            } else {
                detached(py, run)
            };
            let ending = wait(py, &wanted, None)?;
            if let Some(media) = this.answer(py, ending, ran_here)? {
                return Ok(media);
            }
        }
    }

    /// A job that is not queued yet: it decodes, natively without the interpreter, and returns
    /// what `hook` does, the ref's `decode`, which finds the decode done.
    fn job(slf: &Bound<'_, Self>, hook: Py<PyAny>) -> PyResult<PyJob> {
        let context = Context::current(slf.py())?;
        let Some(Joined {
            wanted,
            leads,
            pixels,
        }) = Self::join(slf, Some(&context))?
        else {
            let hook = (hook,).into_pyobject(slf.py())?.unbind();
            return Ok(PyJob::of_call(context, hook, None));
        };
        let after = match wanted.leader() {
            Some(leader) => Some(Arc::clone(leader)),
            None => (!leads).then(|| Arc::clone(wanted.flight())),
        };
        // Held by the job's work, so that what is left of the flight goes when that has ended.
        let wanted = Arc::new(wanted);
        let leave = Arc::downgrade(&wanted);
        let staged = wanted.is_staged();
        let flight = if staged {
            Flight::staged(Box::new(move |_| {
                let rest = Arc::clone(wanted.flight()).begin();
                if rest.is_none() && matches!(wanted.ending(), Some(Ending::Withdrawn)) {
                    return None;
                }
                Some(Box::new(move || {
                    work_attached(|py| {
                        if let Some(rest) = rest {
                            rest();
                        }
                        with_brought(py, wanted.flight(), hook, &context)
                    })
                }))
            }))
        } else {
            Flight::new(Box::new(move |_| {
                work_attached(|py| {
                    wanted.run();
                    with_brought(py, wanted.flight(), hook, &context)
                })
            }))
        };
        let task = Arc::clone(&flight);
        let entry = if staged {
            Job::decode(task, pixels)
        } else {
            Job {
                site: Site::Host,
                ..Job::new(task)
            }
        };
        Ok(PyJob::of_decode(flight, entry, leave, after))
    }

    #[classmethod]
    fn __class_getitem__(class: &Bound<'_, PyType>, _item: &Bound<'_, PyAny>) -> Py<PyType> {
        class.clone().unbind()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Where it is locked it looks referenced: kept until the next collection.
        if let Ok(decoder) = self.decoder.try_lock() {
            visit.call(&*decoder)?;
        }
        visit.call(&self.memo)
    }
}
