"""Prompt and media to token ids and tensors. One file a model family."""

from safelight.inputs import PromptUpdateDetails
from safelight.processing.info import ProcessingInfo
from safelight.processing.native import image_processor
from safelight.processing.processor import BaseMultiModalProcessor
from safelight.processing.prompt_updates import PromptReplacement
from safelight.processing.registry import MULTIMODAL_REGISTRY
from safelight.processing.request import MultiModalInputs, ProcessorInputs
from safelight.processing.state import MultiModalApplyState
from safelight.processing.timing import TimingContext

__all__ = [
    "BaseMultiModalProcessor",
    "MULTIMODAL_REGISTRY",
    "MultiModalApplyState",
    "MultiModalInputs",
    "ProcessingInfo",
    "ProcessorInputs",
    "PromptReplacement",
    "PromptUpdateDetails",
    "TimingContext",
    "image_processor",
]
