# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Vision and audio encoders beside the language model: what vLLM does when their heads don't divide.

It is each model's own code that decides. Sources: the ``divide`` of ``qwen2_vl.py``, ``glm4_1v.py``, ``siglip.py``,
``clip.py``, ``pixtral.py``, ``mllama4.py`` and their like; the dummy heads of ``internvl.py``; vLLM 0.8 to 0.33.
"""

from __future__ import annotations

import re
from typing import List

from .check import FAIL, PASS, WARN, Check, Split
from .types import ModelFacts

# Encoders whose heads are split, so that a size that doesn't divide is refused.
_SPLIT = re.compile(
    r"Qwen2VL|Qwen2_5_VL|Qwen2_5OmniM?o?d?e?l?|Qwen3VL|Qwen3_5|Qwen3Omni|Glm4v|GlmOcr|Llama4|Mllama|Llava|"
    r"Gemma3For|PaliGemma|Pixtral|Mistral3|Idefics3|SmolVLM|KimiVL|KimiK25|Ernie4_5_VL|Step3VL|DotsOCR|MiniCPMV|"
    r"Keye|Ovis|Whisper"
)
# Encoders that are padded, or stand whole on every rank.
_WHOLE = re.compile(r"InternVL|InternS1|H2OVL|NVLM|NemotronH_Nano_VL|Qwen2Audio|Gemma3n|DeepseekVLV2|Molmo")
# Of the models above, encoders that stand whole on every rank all the same.
_WHOLE_ENCODERS = (("Qwen2_5Omni", "audio_config"),)


def encoders(facts: ModelFacts, split: Split) -> List[Check]:
    """One check for each encoder whose heads don't divide, or that stands whole where they don't."""
    checks = []
    for name, heads in facts.encoder_heads:
        if heads % split.tp == 0 or split.encoder_data_parallel:
            continue
        said = "%s has %d attention heads, not a multiple of tensor_parallel_size %d" % (name, heads, split.tp)
        architecture = " ".join(facts.architectures)
        whole = any(part in architecture and name == encoder for part, encoder in _WHOLE_ENCODERS)
        if whole or _WHOLE.search(architecture):
            checks.append(Check("encoder_heads", PASS, said + "; this encoder is padded or stands whole on every rank"))
        elif _SPLIT.search(architecture) and not (split.refines and "audio" in name):
            checks.append(Check("encoder_heads", FAIL, said))
        else:
            # Some encoders pad their heads, some aren't split, some refuse: the model's own code decides.
            fix = "If vLLM refuses it, set mm_encoder_tp_mode: data, which doesn't split the encoder."
            checks.append(Check("encoder_heads", WARN, said, fix))
    return checks
