/*
 * Copyright (c) 2026 the gpufleet.vllm authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The line protocol of lab/driver/client.py, in C: a connection per process, requests one at a time.
 */
#include "rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CODE_UNINITIALIZED 1
#define CODE_NO_PERMISSION 4
#define CODE_DRIVER_NOT_LOADED 9
#define CODE_UNKNOWN 999

#define DEFAULT_SOCKET "/run/nvidia-sim/driver.sock"
#define DEFAULT_DEV "/dev"
#define MAX_NODES 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int connection = -1;
static pid_t owner; /* the process that made the connection: a forked child makes its own */
static int opened;  /* nvmlInit calls that are not shut down yet */

/* The device nodes that NVML keeps open as long as it is initialised. */
static int nodes[MAX_NODES];
static int node_count;

/* Bytes received beyond the last line taken. */
static char *inbox;
static size_t inbox_used, inbox_size;

static int safe_byte(unsigned char byte)
{
    if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9'))
        return 1;
    return byte != 0 && strchr("-_.:,/+()[]*=@", byte) != NULL;
}

void rpc_escape(const char *text, char *buffer, size_t size)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t used = 0;

    if (*text == '\0' && size > 1)
        buffer[used++] = '%';
    for (; *text != '\0' && used + 4 < size; text++) {
        unsigned char byte = (unsigned char)*text;
        if (safe_byte(byte)) {
            buffer[used++] = (char)byte;
        } else {
            buffer[used++] = '%';
            buffer[used++] = digits[byte >> 4];
            buffer[used++] = digits[byte & 15];
        }
    }
    buffer[used] = '\0';
}

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    return 0;
}

static void unescape(char *word)
{
    char *to = word;

    while (*word != '\0') {
        if (*word != '%') {
            *to++ = *word++;
        } else if (word[1] == '\0') {
            word++; /* a lone "%" is the empty text */
        } else {
            *to++ = (char)(hex_digit(word[1]) << 4 | hex_digit(word[2]));
            word += 3;
        }
    }
    *to = '\0';
}

static void disconnect(void)
{
    int i;

    if (connection >= 0)
        close(connection);
    connection = -1;
    inbox_used = 0;
    for (i = 0; i < node_count; i++)
        close(nodes[i]);
    node_count = 0;
}

static int connect_driver(void)
{
    struct sockaddr_un address;
    const char *path = getenv("NVIDIA_SIM_SOCKET");

    if (path == NULL || *path == '\0')
        path = DEFAULT_SOCKET;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address.sun_path)
        return CODE_DRIVER_NOT_LOADED;
    strcpy(address.sun_path, path);
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0)
        return CODE_UNKNOWN;
    if (connect(connection, (struct sockaddr *)&address, sizeof address) != 0) {
        int denied = errno == EACCES || errno == EPERM;
        disconnect();
        return denied ? CODE_NO_PERMISSION : CODE_DRIVER_NOT_LOADED;
    }
    owner = getpid();
    return 0;
}

static int send_all(const char *data, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(connection, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -1;
        data += sent;
        size -= (size_t)sent;
    }
    return 0;
}

/* Receives until a whole line is in the inbox. Returns its length without the newline, or -1 at the end. */
static ssize_t receive_line(void)
{
    size_t seen = 0;

    for (;;) {
        ssize_t got;
        char *end = inbox_used > seen ? memchr(inbox + seen, '\n', inbox_used - seen) : NULL;
        if (end != NULL)
            return end - inbox;
        seen = inbox_used;
        if (inbox_size - inbox_used < 4096) {
            char *larger = realloc(inbox, inbox_size + 65536);
            if (larger == NULL)
                return -1;
            inbox = larger;
            inbox_size += 65536;
        }
        got = recv(connection, inbox + inbox_used, inbox_size - inbox_used, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        inbox_used += (size_t)got;
    }
}

static struct answer failed(int code)
{
    struct answer answer = {0, 0, NULL, NULL};

    answer.code = code;
    return answer;
}

/* Takes the line of that length out of the inbox and splits it: word 0 is the code. */
static struct answer take_line(size_t length)
{
    struct answer answer = {0, 0, NULL, NULL};
    char *cursor;
    int words = 1;
    size_t i;

    answer.storage = malloc(length + 1);
    for (i = 0; i < length; i++)
        words += inbox[i] == ' ';
    answer.words = malloc((size_t)words * sizeof *answer.words);
    if (answer.storage == NULL || answer.words == NULL) {
        answer_free(&answer);
        return failed(CODE_UNKNOWN);
    }
    memcpy(answer.storage, inbox, length);
    answer.storage[length] = '\0';
    memmove(inbox, inbox + length + 1, inbox_used - length - 1);
    inbox_used -= length + 1;
    for (cursor = answer.storage; cursor != NULL && *cursor != '\0';) {
        char *space = strchr(cursor, ' ');
        if (space != NULL)
            *space++ = '\0';
        answer.words[answer.count++] = cursor;
        cursor = space;
    }
    for (i = 0; i < (size_t)answer.count; i++)
        unescape(answer.words[i]);
    return answer;
}

static void print(int descriptor, const char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        ssize_t written = write(descriptor, text, left);
        if (written <= 0)
            return;
        text += written;
        left -= (size_t)written;
    }
}

/*
 * Waits for the answer in state D: the parent of a vfork can't be interrupted until its child is gone, and the child
 * waits for the answer in its place. Only SIGKILL ends the parent, and the child with it.
 */
static void wait_uninterruptibly(void)
{
    sigset_t all, before;
    pid_t child, parent = getpid();
    int status;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    child = vfork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent) {
            char peeked;
            while (recv(connection, &peeked, 1, MSG_PEEK) < 0 && errno == EINTR)
                ;
        }
        _exit(0);
    }
    if (child > 0)
        waitpid(child, &status, 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* Acts out one "!" line. */
static void obey(const struct answer *order)
{
    const char *what = answer_text(order, 0);

    if (strcmp(what, "!stdout") == 0) {
        print(1, answer_text(order, 1));
    } else if (strcmp(what, "!stderr") == 0) {
        print(2, answer_text(order, 1));
    } else if (strcmp(what, "!blockterm") == 0) {
        sigset_t blocked;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGTERM);
        sigaddset(&blocked, SIGINT);
        sigprocmask(SIG_BLOCK, &blocked, NULL);
    } else if (strcmp(what, "!uninterruptible") == 0) {
        wait_uninterruptibly();
    } else if (strcmp(what, "!crash") == 0) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
}

/* Sends one request line and returns its answer; word 0 is taken off into the code. */
static struct answer exchange(const char *line)
{
    struct answer answer;

    if (send_all(line, strlen(line)) != 0)
        return failed(CODE_UNKNOWN);
    for (;;) {
        ssize_t length = receive_line();
        if (length < 0)
            return failed(CODE_UNKNOWN);
        answer = take_line((size_t)length);
        if (answer.count == 0)
            return answer;
        if (answer.words[0][0] != '!')
            break;
        obey(&answer);
        answer_free(&answer);
    }
    answer.code = (int)strtol(answer.words[0], NULL, 10);
    answer.count--;
    memmove(answer.words, answer.words + 1, (size_t)answer.count * sizeof *answer.words);
    return answer;
}

static int open_node(const char *name)
{
    char path[512];
    const char *directory = getenv("NVIDIA_SIM_DEV");
    int node;

    if (directory == NULL || *directory == '\0')
        directory = DEFAULT_DEV;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    node = open(path, O_RDWR | O_CLOEXEC);
    if (node >= 0 && node_count < MAX_NODES)
        nodes[node_count++] = node;
    return node;
}

/*
 * Opens the device nodes as NVML does: without the control node there is no driver to speak to, and a GPU whose own
 * node can't be opened is not shown.
 */
static int open_nodes(const struct answer *init)
{
    char line[1024] = "nvml visible";
    char name[32];
    int i;
    struct answer answer;

    if (answer_number(init, 0) == 0)
        return 0;
    if (open_node("nvidiactl") < 0) {
        if (errno == EACCES)
            return CODE_NO_PERMISSION;
        return errno == EPERM ? CODE_UNKNOWN : CODE_DRIVER_NOT_LOADED;
    }
    for (i = 1; i < init->count; i++) {
        snprintf(name, sizeof name, "nvidia%s", answer_text(init, i));
        if (open_node(name) >= 0) {
            strcat(line, " ");
            strcat(line, answer_text(init, i));
        }
    }
    strcat(line, "\n");
    answer = exchange(line);
    i = answer.code;
    answer_free(&answer);
    return i;
}

/* A session on a fresh connection. */
static int begin(const char *init_call)
{
    char line[128];
    struct answer answer;
    int code = connect_driver();

    if (code != 0)
        return code;
    snprintf(line, sizeof line, "nvml %s library\n", init_call);
    answer = exchange(line);
    code = answer.code;
    if (code == 0)
        code = open_nodes(&answer);
    answer_free(&answer);
    if (code != 0)
        disconnect();
    return code;
}

int rpc_open(const char *init_call)
{
    int code = 0;

    pthread_mutex_lock(&lock);
    if (opened == 0 || owner != getpid()) {
        disconnect();
        code = begin(init_call);
    }
    if (code == 0)
        opened++;
    pthread_mutex_unlock(&lock);
    return code;
}

void rpc_close(void)
{
    pthread_mutex_lock(&lock);
    if (opened > 0 && --opened == 0)
        disconnect();
    pthread_mutex_unlock(&lock);
}

int rpc_is_open(void)
{
    return opened > 0;
}

struct answer rpc_call(const char *call, const char *format, ...)
{
    static const char prefix[] = "nvml ";
    char line[4096];
    size_t used;
    va_list arguments;
    struct answer answer;

    pthread_mutex_lock(&lock);
    if (opened == 0) {
        pthread_mutex_unlock(&lock);
        return failed(CODE_UNINITIALIZED);
    }
    if (owner != getpid()) {
        int code;
        disconnect();
        code = begin("nvmlInit_v2");
        if (code != 0) {
            pthread_mutex_unlock(&lock);
            return failed(code);
        }
    }
    used = (size_t)snprintf(line, sizeof line, "%s%s ", prefix, call);
    va_start(arguments, format);
    used += (size_t)vsnprintf(line + used, sizeof line - used, format, arguments);
    va_end(arguments);
    if (used + 2 > sizeof line) {
        pthread_mutex_unlock(&lock);
        return failed(CODE_UNKNOWN);
    }
    line[used] = '\n';
    line[used + 1] = '\0';
    answer = connection < 0 ? failed(CODE_UNKNOWN) : exchange(line);
    pthread_mutex_unlock(&lock);
    return answer;
}

void answer_free(struct answer *answer)
{
    free(answer->storage);
    free(answer->words);
    answer->storage = NULL;
    answer->words = NULL;
    answer->count = 0;
}

unsigned long long answer_number(const struct answer *answer, int position)
{
    return position < answer->count ? strtoull(answer->words[position], NULL, 10) : 0;
}

const char *answer_text(const struct answer *answer, int position)
{
    return position < answer->count ? answer->words[position] : "";
}
