"""Pool and cache in processes of their own: signals, forks, exits, and what they hold of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

# A soak asks for more of the same; the default is what every change can afford.
ROUNDS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "slow" else 1

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def run_script(script: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run `script` in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_interrupt_reaches_a_waiter() -> None:
    script = """
        import signal, threading, time, os
        from safelight.cache import MediaCache
        gate = threading.Event()
        cache = MediaCache(10)
        def slow():
            os.kill(os.getpid(), signal.SIGINT)
            gate.wait(60)
            return "v", 1
        try:
            cache.get_or_compute(b"k", slow)
        except KeyboardInterrupt:
            gate.set()
            assert cache.get_or_compute(b"k", slow) == "v"
            assert cache.stats().cancelled == 1
            print("interrupted")
    """
    result = run_script(script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\n", "")


def test_openmp_of_a_worker_is_limited_and_of_others_is_not() -> None:
    pytest.importorskip("torch")
    script = """
        import torch
        from safelight.pool import MediaPool
        torch.set_num_threads(7)
        pool = MediaPool(1)
        print(pool.submit(torch.get_num_threads).result(), torch.get_num_threads())
        pool.shutdown()
    """
    result = run_script(script)
    assert (result.returncode, result.stdout) == (0, "1 7\n"), result.stderr


@forks
def test_child_of_a_fork_has_a_pool_and_the_cached_values() -> None:
    script = """
        import os, threading, warnings
        from safelight.cache import MediaCache
        from safelight.pool import media_pool
        warnings.simplefilter("ignore")  # 3.12 warns of every fork beside threads
        cache = MediaCache(100)
        cache.put(b"kept", "k", 1)
        gate, stop = threading.Event(), threading.Event()
        pending = media_pool().submit(gate.wait, 60)
        def slow():
            gate.wait(60)
            return "v", 1
        asker = threading.Thread(target=cache.get_or_compute, args=(b"slow", slow))
        asker.start()
        def load():
            number = 0
            while not stop.is_set():
                number += 1
                cache.get_or_compute(b"%d" % (number % 50), lambda: (number, 3))
        loader = threading.Thread(target=load)
        loader.start()
        for number in range(20):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    assert cache.get(b"kept", "k") == "k"
                    assert cache.stats().in_flight == 0
                    assert cache.get_or_compute(b"slow", lambda: ("anew", 1)) == "anew"
                    assert media_pool().submit(divmod, 7, 2).result(10) == (3, 1)
                    try:
                        pending.result(10)
                    except RuntimeError:
                        status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set(); gate.set(); loader.join(); asker.join()
        assert pending.result(10)
        print("done")
    """
    result = run_script(script)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


@forks
def test_job_may_fork() -> None:
    script = """
        import os, warnings
        from safelight.pool import MediaPool
        warnings.simplefilter("ignore")
        def fork():
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = 0 if MediaPool(1).submit(divmod, 7, 2).result(10) == (3, 1) else 2
                finally:
                    os._exit(status)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(MediaPool(1).submit(fork).result())
    """
    result = run_script(script)
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


def test_exit_withdraws_what_waits_and_lets_what_runs_end() -> None:
    script = """
        import threading, time
        from safelight.pool import MediaPool
        pool = MediaPool(1)
        started = threading.Event()
        def slow():
            started.set()
            time.sleep(0.3)
            print("ended", flush=True)
        pool.submit(slow)
        pool.submit(print, "never")
        started.wait()
    """
    result = run_script(script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ended\n", "")


def test_exit_does_not_wait_for_ever_and_survives_what_comes_back_late() -> None:
    script = """
        import threading, time, atexit
        from safelight.pool import MediaPool
        pool = MediaPool(3)
        started = threading.Barrier(4)
        def python():
            started.wait()
            while True:
                time.sleep(0.001)
        def blocking():
            started.wait()
            time.sleep(5.5)
            print("not reached")
        pool.submit(python); pool.submit(python); pool.submit(blocking)
        started.wait()
        class Late:
            def __del__(self): time.sleep(1)
        import sys
        sys.late = Late()
    """
    started = time.monotonic()
    result = run_script(script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert time.monotonic() - started < 30


def test_exit_with_an_event_loop_waiting() -> None:
    script = """
        import asyncio, threading
        from safelight.cache import MediaCache
        cache = MediaCache(10)
        gate = threading.Event()
        async def main():
            waiting = cache.get_or_compute_async(b"k", lambda: (gate.wait(0.2), 1))
            task = asyncio.create_task(waiting)
            await asyncio.sleep(0.05)
        asyncio.run(main())
        print("out")
    """
    result = run_script(script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "out\n", "")


def test_an_entry_costs_at_most_200_bytes_beside_key_and_value() -> None:
    script = """
        import hashlib
        from pathlib import Path
        from safelight.cache import MediaCache
        def resident():
            pages = Path("/proc/self/statm").read_text().split()[1]
            return int(pages) * 4096
        count = 300_000
        cache = MediaCache(1 << 40)
        value = object()
        before = resident()
        for number in range(count):
            cache.put(hashlib.sha256(b"%d" % number).digest(), value, 1)
        print((resident() - before) // count)
    """
    if not Path("/proc/self/statm").exists():
        pytest.skip("only Linux tells what is resident")
    result = run_script(script)
    assert result.returncode == 0, result.stderr
    assert 0 < int(result.stdout) <= 200


def test_nothing_piles_up() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("only Linux tells what is resident")
    script = f"""
        import asyncio, gc, os
        from pathlib import Path
        from safelight.cache import MediaCache
        from safelight.pool import MediaPool
        def resident():
            pages = Path("/proc/self/statm").read_text().split()[1]
            return int(pages) * 4096
        pool = MediaPool(2)
        cache = MediaCache(1 << 20, pool=pool)
        def fail():
            raise ValueError("v")
        async def waves(count):
            for number in range(count):
                tasks = [
                    asyncio.create_task(cache.get_or_compute_async(
                        b"%d" % (number * 16 + offset),
                        (lambda: (bytes(4096), 4096)) if offset % 4 else fail,
                    ))
                    for offset in range(16)
                ]
                await asyncio.sleep(0)
                for task in tasks[::3]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                pool.wait(pool.submit_batch([bytes] * 16))
        rounds = {300 * ROUNDS}
        asyncio.run(waves(rounds))
        gc.collect()
        before = resident()
        asyncio.run(waves(3 * rounds))
        gc.collect()
        print(resident() - before)
    """
    result = run_script(script, timeout_s=110)
    assert result.returncode == 0, result.stderr
    # Three times what came before leaves no more behind than an allocator's mood.
    assert int(result.stdout) < 4 << 20
