"""The families of the zoo, in the order of the table: name -> Entry of each."""

from __future__ import annotations

from tests.zoo.families.decoders import DECODERS
from tests.zoo.families.detection import DETECTION
from tests.zoo.families.encoder_decoders import ENCODER_DECODERS
from tests.zoo.families.encoders import ENCODERS
from tests.zoo.families.experts import EXPERTS
from tests.zoo.families.multimodal import MULTIMODAL
from tests.zoo.families.newer_decoders import NEWER_DECODERS
from tests.zoo.families.plain import PLAIN
from tests.zoo.families.segmentation import SEGMENTATION
from tests.zoo.families.series import SERIES
from tests.zoo.families.speech import SPEECH
from tests.zoo.families.state_space import STATE_SPACE
from tests.zoo.families.vision import VISION

FAMILIES = (
    *(ENCODERS, DECODERS, NEWER_DECODERS, ENCODER_DECODERS, EXPERTS, STATE_SPACE),
    *(VISION, DETECTION, SEGMENTATION, SPEECH, SERIES, MULTIMODAL, PLAIN),
)
