# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a tensor is for, by its name: what is split over ranks, what stands on each, what isn't loaded at all."""

from __future__ import annotations

from typing import Dict, Optional, Set

EMBEDDING, HEAD, EXPERTS, ENCODER, NEXTN, REST = "embedding", "head", "experts", "encoder", "nextn", "rest"
# In the checkpoint, but no part of what vLLM serves: the voice of an omni model.
UNUSED = "unused"

_UNUSED = ("talker.", "token2wav.", "code2wav.")
_NEXTN = ("mtp.", "model.mtp", "model.language_model.mtp", "model.nextn", "nextn.")
_ENCODERS = (
    "visual.",
    "vision_",
    "vision.",
    "vision_tower",
    "multi_modal_projector",
    "mm_projector",
    "audio_",
    "audio.",
    "vit.",
    "vpm.",
    "apm.",
    "resampler.",
    "mlp1.",
    "patch_merger",
    "aligner.",
    "embed_vision",
    "embed_audio",
    "speech_",
    "img_",
    "image_newline",
    "mlp_AR.",
    "v.",
    "mm.",
    "a.",
)
_EMBEDDINGS = (
    "embed_tokens.",
    "wte.",
    "word_embeddings.",
    "tok_embeddings.",
    "backbone.embeddings.",
    "backbone.embedding.",
    "embed_in.",
    "token_embd.",
)
_HEADS = ("lm_head.", "output.", "embed_out.", "language_model.lm_head.", "model.lm_head.", "thinker.lm_head.")
_ROOTS = ("model.", "language_model.", "thinker.", "llm.", "transformer.")
# Before "layers.": those of the language model itself.
_OWN_LAYERS = frozenset(
    ("", "model.", "backbone.", "language_model.model.", "model.language_model.", "thinker.model.", "llm.model.")
)


class Roles:
    """Roles of the tensors of one model with so many ``layers``; those of later layers are for next-token prediction."""

    def __init__(self, layers: Optional[int]) -> None:
        self.layers = layers
        self._beyond: Dict[str, bool] = {}
        self._own: Set[str] = set()

    @property
    def last_layer(self) -> Optional[int]:
        """The highest number of the language model's layers among the names asked for, next-token prediction included."""
        return max((int(number) for number in self._own if number.isdigit() and len(number) < 6), default=None)

    def of(self, name: str) -> str:
        """The role of one tensor."""
        start = name.find("layers.")
        if start < 0:
            return _outside(name)
        number = name[start + 7 : name.find(".", start + 7)]
        beyond = self._beyond.get(number)
        if number not in self._own and name[:start] in _OWN_LAYERS:
            self._own.add(number)
        if beyond is None:
            beyond = self.layers is not None and number.isdigit() and int(number[:9]) >= self.layers
            self._beyond[number] = beyond
        found = _outside(name)
        if found in (ENCODER, NEXTN, UNUSED):
            return found
        if beyond:
            return NEXTN
        return EXPERTS if ".experts." in name else REST


def _outside(name: str) -> str:
    """The role by the first words of a name."""
    if name.startswith(_UNUSED):
        return UNUSED
    if name.startswith(_NEXTN):
        return NEXTN
    if name.startswith(_HEADS):
        return HEAD
    plain = name
    for root in _ROOTS * 2:
        if plain.startswith(root):
            plain = plain[len(root) :]
    if plain.startswith(_ENCODERS):
        return ENCODER
    if plain.startswith(_EMBEDDINGS) or name.startswith(_EMBEDDINGS):
        return EMBEDDING
    if plain.startswith("mtp"):
        return NEXTN
    if "_exps." in name or ".experts." in name:
        return EXPERTS
    return HEAD if plain.startswith("lm_head.") else REST
