# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What values are made of, for the property tests of this room."""

from __future__ import annotations

from hypothesis import strategies as st

# Everything that may stand in a value: no controls but the tab, no surrogates, no line separators.
TEXTS = st.text(
    st.one_of(
        st.sampled_from("%$\"'\\ \t;#{}[]=:,@-+!|~*?<>&`^()01e."),
        st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="\ufeff\ufffe\uffff"),
    ),
    max_size=60,
)
