/*
 * Copyright (c) 2026 the gpufleet.vllm authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * One NVML call is one line to the driver and one line back.
 */
#ifndef GPUFLEET_SIM_RPC_H
#define GPUFLEET_SIM_RPC_H

#include <stddef.h>

/* An answer: its return code and its words, unescaped, in storage of its own. */
struct answer {
    int code;
    int count;
    char **words;
    char *storage;
};

/* Connects to the driver and says what kind of call opens the session. Returns an NVML code. */
int rpc_open(const char *init_call);

/* Ends the session. */
void rpc_close(void);

/* Whether a session is open (nvmlInit without its nvmlShutdown). */
int rpc_is_open(void);

/*
 * Sends "nvml CALL ARGUMENTS" and waits for the answer, acting out what the driver demands meanwhile. The answer's
 * code is an NVML code in every case; its words must be given back with answer_free.
 */
struct answer rpc_call(const char *call, const char *format, ...);

void answer_free(struct answer *answer);

/* The number in a word of an answer; 0 where there is no such word. */
unsigned long long answer_number(const struct answer *answer, int position);

/* The text of a word of an answer; "" where there is no such word. */
const char *answer_text(const struct answer *answer, int position);

/* Percent-escapes text into a buffer of size bytes, which 3 * strlen(text) + 2 always suffices for. */
void rpc_escape(const char *text, char *buffer, size_t size);

#endif
