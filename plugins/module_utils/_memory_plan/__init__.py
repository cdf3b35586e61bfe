# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much memory a model needs on each GPU, and how much KV cache is left: numbers in, a plan out.

Nothing is read and nothing is asked here: `plan.plan_memory` is the one way in. docs/memory-plan.md has the rules, and
how far they are from what real starts printed.
"""
