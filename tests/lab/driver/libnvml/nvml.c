/*
 * Copyright (c) 2026 the gpufleet.vllm authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * libnvidia-ml.so.1 without a GPU: every function asks the simulated driver and fills in the caller's structures.
 * The layouts below are NVML's binary interface, written down from its public documentation.
 */
#include "rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    NVML_SUCCESS = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_LIBRARY_TABLE_FULL = 20,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_UNKNOWN = 999
};

typedef int nvmlReturn_t;

/* --- handles: the driver's token for a GPU or a MIG device, at an address that stays */

struct device {
    char token[16];
};

typedef struct device *nvmlDevice_t;

#define MAX_DEVICES 512
static struct device devices[MAX_DEVICES];
static int device_count;

static nvmlReturn_t device_of(const char *token, nvmlDevice_t *device)
{
    int i;

    for (i = 0; i < device_count; i++)
        if (strcmp(devices[i].token, token) == 0)
            break;
    if (i == device_count) {
        if (device_count == MAX_DEVICES || strlen(token) >= sizeof devices[0].token)
            return NVML_LIBRARY_TABLE_FULL;
        strcpy(devices[device_count++].token, token);
    }
    *device = &devices[i];
    return NVML_SUCCESS;
}

/* The token of a handle, or "null" for what is none of ours: the driver then says what becomes of the caller. */
static const char *token_of(nvmlDevice_t device)
{
    if (device >= devices && device < devices + device_count)
        return device->token;
    return "null";
}

/* --- answers into the caller's storage */

static nvmlReturn_t done(struct answer *answer)
{
    nvmlReturn_t code = answer->code;

    answer_free(answer);
    return code;
}

static nvmlReturn_t give_text(struct answer *answer, char *buffer, unsigned int length)
{
    if (answer->code == NVML_SUCCESS) {
        const char *text = answer_text(answer, 0);
        if (strlen(text) + 1 > length)
            answer->code = NVML_INSUFFICIENT_SIZE;
        else
            strcpy(buffer, text);
    }
    return done(answer);
}

static nvmlReturn_t give_number(struct answer *answer, unsigned int *number)
{
    if (answer->code == NVML_SUCCESS)
        *number = (unsigned int)answer_number(answer, 0);
    return done(answer);
}

static nvmlReturn_t give_device(struct answer *answer, nvmlDevice_t *device)
{
    if (answer->code == NVML_SUCCESS)
        answer->code = device_of(answer_text(answer, 0), device);
    return done(answer);
}

/* --- the library */

#define INIT(name, parameters)                                                                                         \
    EXPORT nvmlReturn_t name parameters;                                                                               \
    EXPORT nvmlReturn_t name parameters                                                                                \
    {                                                                                                                  \
        return rpc_open(#name);                                                                                        \
    }

INIT(nvmlInit, (void))
INIT(nvmlInit_v2, (void))

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags);
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return rpc_open("nvmlInitWithFlags");
}

EXPORT nvmlReturn_t nvmlShutdown(void);
EXPORT nvmlReturn_t nvmlShutdown(void)
{
    struct answer answer = rpc_call("nvmlShutdown", "");

    if (answer.code == NVML_SUCCESS)
        rpc_close();
    return done(&answer);
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result);
EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
#include "error_texts.h"
    };

    if (result >= 0 && (size_t)result < sizeof texts / sizeof *texts)
        return texts[result];
    return "Unknown Error";
}

/* --- the system */

#define SYSTEM_TEXT(name)                                                                                              \
    EXPORT nvmlReturn_t name(char *buffer, unsigned int length);                                                       \
    EXPORT nvmlReturn_t name(char *buffer, unsigned int length)                                                        \
    {                                                                                                                  \
        struct answer answer;                                                                                          \
        if (buffer == NULL)                                                                                            \
            return NVML_INVALID_ARGUMENT;                                                                              \
        answer = rpc_call(#name, "");                                                                                  \
        return give_text(&answer, buffer, length);                                                                     \
    }

#define SYSTEM_NUMBER(name)                                                                                            \
    EXPORT nvmlReturn_t name(unsigned int *number);                                                                    \
    EXPORT nvmlReturn_t name(unsigned int *number)                                                                     \
    {                                                                                                                  \
        struct answer answer;                                                                                          \
        if (number == NULL)                                                                                            \
            return NVML_INVALID_ARGUMENT;                                                                              \
        answer = rpc_call(#name, "");                                                                                  \
        return give_number(&answer, number);                                                                           \
    }

SYSTEM_TEXT(nvmlSystemGetDriverVersion)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion)
SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion)
SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion_v2)
SYSTEM_NUMBER(nvmlDeviceGetCount)
SYSTEM_NUMBER(nvmlDeviceGetCount_v2)

/* The name is read from the caller's own /proc, as the library does it: the driver knows no names. */
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length);
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    struct answer answer;
    char path[64];
    char title[1024];
    size_t size;
    FILE *file;

    if (name == NULL || length == 0)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlSystemGetProcessName", "%u", pid);
    if (answer.code != NVML_SUCCESS || answer.count > 0)
        return give_text(&answer, name, length);
    answer_free(&answer);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    file = fopen(path, "r");
    if (file == NULL)
        return NVML_NOT_FOUND;
    size = fread(title, 1, sizeof title - 1, file);
    fclose(file);
    title[size] = '\0';
    if (title[0] == '\0')
        return NVML_NOT_FOUND;
    if (strlen(title) + 1 > length)
        return NVML_INSUFFICIENT_SIZE;
    strcpy(name, title);
    return NVML_SUCCESS;
}

/* --- handles */

#define HANDLE_BY_INDEX(name)                                                                                          \
    EXPORT nvmlReturn_t name(unsigned int index, nvmlDevice_t *device);                                                \
    EXPORT nvmlReturn_t name(unsigned int index, nvmlDevice_t *device)                                                 \
    {                                                                                                                  \
        struct answer answer;                                                                                          \
        if (device == NULL)                                                                                            \
            return NVML_INVALID_ARGUMENT;                                                                              \
        answer = rpc_call(#name, "%u", index);                                                                         \
        return give_device(&answer, device);                                                                           \
    }

#define HANDLE_BY_TEXT(name)                                                                                           \
    EXPORT nvmlReturn_t name(const char *text, nvmlDevice_t *device);                                                  \
    EXPORT nvmlReturn_t name(const char *text, nvmlDevice_t *device)                                                   \
    {                                                                                                                  \
        struct answer answer;                                                                                          \
        char escaped[1024];                                                                                            \
        if (text == NULL || device == NULL || strlen(text) > 300)                                                      \
            return NVML_INVALID_ARGUMENT;                                                                              \
        rpc_escape(text, escaped, sizeof escaped);                                                                     \
        answer = rpc_call(#name, "%s", escaped);                                                                       \
        return give_device(&answer, device);                                                                           \
    }

HANDLE_BY_INDEX(nvmlDeviceGetHandleByIndex)
HANDLE_BY_INDEX(nvmlDeviceGetHandleByIndex_v2)
HANDLE_BY_TEXT(nvmlDeviceGetHandleByUUID)
HANDLE_BY_TEXT(nvmlDeviceGetHandleBySerial)
HANDLE_BY_TEXT(nvmlDeviceGetHandleByPciBusId)
HANDLE_BY_TEXT(nvmlDeviceGetHandleByPciBusId_v2)

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    struct answer answer;

    if (mig == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlDeviceGetMigDeviceHandleByIndex", "%s %u", token_of(device), index);
    return give_device(&answer, mig);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    struct answer answer;

    if (device == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "%s", token_of(mig));
    return give_device(&answer, device);
}

/* --- one value of one device */

#define DEVICE_TEXT(name)                                                                                              \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, char *buffer, unsigned int length);                                  \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, char *buffer, unsigned int length)                                   \
    {                                                                                                                  \
        struct answer answer;                                                                                          \
        if (buffer == NULL)                                                                                            \
            return NVML_INVALID_ARGUMENT;                                                                              \
        answer = rpc_call(#name, "%s", token_of(device));                                                              \
        return give_text(&answer, buffer, length);                                                                     \
    }

#define DEVICE_NUMBER(name)                                                                                            \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *number);                                               \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *number)                                                \
    {                                                                                                                  \
        struct answer answer;                                                                                          \
        if (number == NULL)                                                                                            \
            return NVML_INVALID_ARGUMENT;                                                                              \
        answer = rpc_call(#name, "%s", token_of(device));                                                              \
        return give_number(&answer, number);                                                                           \
    }

#define DEVICE_TWO_NUMBERS(name, type)                                                                                 \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, type *first, type *second);                                          \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, type *first, type *second)                                           \
    {                                                                                                                  \
        struct answer answer;                                                                                          \
        if (first == NULL || second == NULL)                                                                           \
            return NVML_INVALID_ARGUMENT;                                                                              \
        answer = rpc_call(#name, "%s", token_of(device));                                                              \
        if (answer.code == NVML_SUCCESS) {                                                                             \
            *first = (type)answer_number(&answer, 0);                                                                  \
            *second = (type)answer_number(&answer, 1);                                                                 \
        }                                                                                                              \
        return done(&answer);                                                                                          \
    }

DEVICE_TEXT(nvmlDeviceGetName)
DEVICE_TEXT(nvmlDeviceGetUUID)
DEVICE_TEXT(nvmlDeviceGetSerial)
DEVICE_TEXT(nvmlDeviceGetVbiosVersion)

DEVICE_NUMBER(nvmlDeviceGetIndex)
DEVICE_NUMBER(nvmlDeviceGetMinorNumber)
DEVICE_NUMBER(nvmlDeviceGetBrand)
DEVICE_NUMBER(nvmlDeviceGetArchitecture)
DEVICE_NUMBER(nvmlDeviceGetNumGpuCores)
DEVICE_NUMBER(nvmlDeviceGetComputeMode)
DEVICE_NUMBER(nvmlDeviceGetPersistenceMode)
DEVICE_NUMBER(nvmlDeviceGetDisplayActive)
DEVICE_NUMBER(nvmlDeviceGetVirtualizationMode)
DEVICE_NUMBER(nvmlDeviceGetPerformanceState)
DEVICE_NUMBER(nvmlDeviceGetFanSpeed)
DEVICE_NUMBER(nvmlDeviceGetPowerUsage)
DEVICE_NUMBER(nvmlDeviceGetEnforcedPowerLimit)
DEVICE_NUMBER(nvmlDeviceGetPowerManagementLimit)
DEVICE_NUMBER(nvmlDeviceGetRetiredPagesPendingStatus)
DEVICE_NUMBER(nvmlDeviceGetMaxMigDeviceCount)
DEVICE_NUMBER(nvmlDeviceIsMigDeviceHandle)
DEVICE_NUMBER(nvmlDeviceGetGpuInstanceId)
DEVICE_NUMBER(nvmlDeviceGetComputeInstanceId)

DEVICE_TWO_NUMBERS(nvmlDeviceGetMigMode, unsigned int)
DEVICE_TWO_NUMBERS(nvmlDeviceGetEccMode, unsigned int)
DEVICE_TWO_NUMBERS(nvmlDeviceGetCudaComputeCapability, int)

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius);
EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius)
{
    struct answer answer;

    if (celsius == NULL || sensor != 0)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlDeviceGetTemperature", "%s", token_of(device));
    return give_number(&answer, celsius);
}

struct temperature {
    unsigned int version;
    int sensor;
    int celsius;
};

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *temperature);
EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *temperature)
{
    struct answer answer;

    if (temperature == NULL || temperature->sensor != 0)
        return NVML_INVALID_ARGUMENT;
    if (temperature->version != (sizeof *temperature | 1u << 24))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    answer = rpc_call("nvmlDeviceGetTemperature", "%s", token_of(device));
    if (answer.code == NVML_SUCCESS)
        temperature->celsius = (int)answer_number(&answer, 0);
    return done(&answer);
}

/* NVML_CLOCK_SM is 1, NVML_CLOCK_MEM is 2; the graphics clock follows the SMs'. */
EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int domain, unsigned int *mhz);
EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int domain, unsigned int *mhz)
{
    struct answer answer;

    if (mhz == NULL || domain < 0 || domain > 3)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call(domain == 2 ? "nvmlDeviceGetMemClock" : "nvmlDeviceGetSmClock", "%s", token_of(device));
    return give_number(&answer, mhz);
}

/* The two setters return nothing but their code. */
EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode);
EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode)
{
    struct answer answer = rpc_call("nvmlDeviceSetPersistenceMode", "%s %u", token_of(device), mode);

    return done(&answer);
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode);
EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode)
{
    struct answer answer = rpc_call("nvmlDeviceSetComputeMode", "%s %u", token_of(device), mode);

    return done(&answer);
}

/* --- structures */

struct memory_v1 {
    unsigned long long total, free, used;
};

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory_v1 *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory_v1 *memory)
{
    struct answer answer;

    if (memory == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlDeviceGetMemoryInfo", "%s", token_of(device));
    if (answer.code == NVML_SUCCESS) {
        memory->total = answer_number(&answer, 0);
        memory->free = answer_number(&answer, 1);
        memory->used = answer_number(&answer, 2);
    }
    return done(&answer);
}

struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

#define MEMORY_V2_VERSION (sizeof(struct memory_v2) | 2u << 24)

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory)
{
    struct answer answer;

    if (memory == NULL)
        return NVML_INVALID_ARGUMENT;
    if (memory->version != MEMORY_V2_VERSION)
        return NVML_ARGUMENT_VERSION_MISMATCH;
    answer = rpc_call("nvmlDeviceGetMemoryInfo_v2", "%s", token_of(device));
    if (answer.code == NVML_SUCCESS) {
        memory->total = answer_number(&answer, 0);
        memory->reserved = answer_number(&answer, 1);
        memory->free = answer_number(&answer, 2);
        memory->used = answer_number(&answer, 3);
    }
    return done(&answer);
}

struct bar1_memory {
    unsigned long long total, free, used;
};

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, struct bar1_memory *memory);
EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, struct bar1_memory *memory)
{
    struct answer answer;

    if (memory == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlDeviceGetBAR1MemoryInfo", "%s", token_of(device));
    if (answer.code == NVML_SUCCESS) {
        memory->total = answer_number(&answer, 0);
        memory->free = answer_number(&answer, 1);
        memory->used = answer_number(&answer, 2);
    }
    return done(&answer);
}

struct utilization {
    unsigned int gpu, memory;
};

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *percent);
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *percent)
{
    struct answer answer;

    if (percent == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlDeviceGetUtilizationRates", "%s", token_of(device));
    if (answer.code == NVML_SUCCESS) {
        percent->gpu = (unsigned int)answer_number(&answer, 0);
        percent->memory = (unsigned int)answer_number(&answer, 1);
    }
    return done(&answer);
}

/* The second and the third form have the same layout; the third gave the old name to the short bus id. */
struct pci_info {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

static nvmlReturn_t pci_info(const char *call, nvmlDevice_t device, struct pci_info *info)
{
    struct answer answer;

    if (info == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call(call, "%s", token_of(device));
    if (answer.code == NVML_SUCCESS) {
        memset(info, 0, sizeof *info);
        strncpy(info->bus_id_legacy, answer_text(&answer, 0), sizeof info->bus_id_legacy - 1);
        info->domain = (unsigned int)answer_number(&answer, 1);
        info->bus = (unsigned int)answer_number(&answer, 2);
        info->device = (unsigned int)answer_number(&answer, 3);
        info->device_id = (unsigned int)answer_number(&answer, 4);
        info->subsystem_id = (unsigned int)answer_number(&answer, 5);
        strncpy(info->bus_id, answer_text(&answer, 6), sizeof info->bus_id - 1);
    }
    return done(&answer);
}

#define PCI_INFO(name)                                                                                                 \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, struct pci_info *info);                                              \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, struct pci_info *info)                                               \
    {                                                                                                                  \
        return pci_info(#name, device, info);                                                                          \
    }

PCI_INFO(nvmlDeviceGetPciInfo_v2)
PCI_INFO(nvmlDeviceGetPciInfo_v3)

struct attributes {
    unsigned int multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mb;
};

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, struct attributes *attributes);
EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, struct attributes *attributes)
{
    struct answer answer;

    if (attributes == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlDeviceGetAttributes_v2", "%s", token_of(device));
    if (answer.code == NVML_SUCCESS) {
        attributes->multiprocessors = (unsigned int)answer_number(&answer, 0);
        attributes->copy_engines = (unsigned int)answer_number(&answer, 1);
        attributes->decoders = (unsigned int)answer_number(&answer, 2);
        attributes->encoders = (unsigned int)answer_number(&answer, 3);
        attributes->jpeg = (unsigned int)answer_number(&answer, 4);
        attributes->ofa = (unsigned int)answer_number(&answer, 5);
        attributes->gpu_slices = (unsigned int)answer_number(&answer, 6);
        attributes->compute_slices = (unsigned int)answer_number(&answer, 7);
        attributes->memory_mb = answer_number(&answer, 8);
    }
    return done(&answer);
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                              unsigned int *pending, unsigned int *failure);
EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                              unsigned int *pending, unsigned int *failure)
{
    struct answer answer;

    if (correctable == NULL || uncorrectable == NULL || pending == NULL || failure == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlDeviceGetRemappedRows", "%s", token_of(device));
    if (answer.code == NVML_SUCCESS) {
        *correctable = (unsigned int)answer_number(&answer, 0);
        *uncorrectable = (unsigned int)answer_number(&answer, 1);
        *pending = (unsigned int)answer_number(&answer, 2);
        *failure = (unsigned int)answer_number(&answer, 3);
    }
    return done(&answer);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, int cause, unsigned int *count,
                                              unsigned long long *addresses);
EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, int cause, unsigned int *count,
                                              unsigned long long *addresses)
{
    struct answer answer;
    unsigned int room, found, i;

    if (count == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call("nvmlDeviceGetRetiredPages", "%s %d", token_of(device), cause);
    if (answer.code != NVML_SUCCESS)
        return done(&answer);
    room = addresses == NULL ? 0 : *count;
    found = cause == 1 ? (unsigned int)answer.count : 0; /* all pages of a scenario were double bit errors */
    *count = found;
    if (room < found)
        answer.code = NVML_INSUFFICIENT_SIZE;
    for (i = 0; i < found && room >= found; i++)
        addresses[i] = answer_number(&answer, (int)i);
    return done(&answer);
}

/* --- field values */

struct field_value {
    unsigned int field, scope;
    long long timestamp, latency;
    int type, code;
    union {
        double real;
        unsigned int number;
        unsigned long long large;
    } value;
};

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *values);
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *values)
{
    struct answer answer;
    char numbers[2048] = "";
    size_t used = 0;
    int i;

    if (values == NULL || count < 1 || count > 128)
        return NVML_INVALID_ARGUMENT;
    for (i = 0; i < count; i++)
        used += (size_t)snprintf(numbers + used, sizeof numbers - used, " %u", values[i].field);
    answer = rpc_call("nvmlDeviceGetFieldValues", "%s%s", token_of(device), numbers);
    for (i = 0; answer.code == NVML_SUCCESS && i < count; i++) {
        values[i].code = (int)answer_number(&answer, 3 * i);
        values[i].type = (int)answer_number(&answer, 3 * i + 1);
        values[i].value.large = answer_number(&answer, 3 * i + 2);
        values[i].timestamp = 0;
        values[i].latency = 0;
    }
    return done(&answer);
}

/* --- process lists */

#define ENTRY_WORDS 4 /* per process in an answer: pid, memory, GPU instance, compute instance */

/*
 * The in-and-out count protocol. What is written per process has the driver's own stride, whatever the caller
 * believes: 16 bytes (pid, memory), 24 (and the two instance ids) or 32 (and the protected memory).
 */
static nvmlReturn_t processes(const char *call, nvmlDevice_t device, unsigned int *count, unsigned char *buffer)
{
    struct answer answer;
    unsigned int room, found, i;
    size_t stride;

    if (count == NULL)
        return NVML_INVALID_ARGUMENT;
    answer = rpc_call(call, "%s", token_of(device));
    if (answer.code != NVML_SUCCESS)
        return done(&answer);
    stride = (size_t)answer_number(&answer, 0);
    found = (unsigned int)answer_number(&answer, 1);
    room = *count;
    *count = found;
    if (room < found)
        answer.code = NVML_INSUFFICIENT_SIZE;
    else if (found > 0 && buffer == NULL)
        answer.code = NVML_INVALID_ARGUMENT;
    for (i = 0; answer.code == NVML_SUCCESS && i < found; i++) {
        unsigned char *entry = buffer + i * stride;
        int word = 2 + ENTRY_WORDS * (int)i;
        unsigned int pid = (unsigned int)answer_number(&answer, word);
        unsigned long long memory = answer_number(&answer, word + 1);
        unsigned int instances[2];
        unsigned long long protected_memory = 0;
        instances[0] = (unsigned int)answer_number(&answer, word + 2);
        instances[1] = (unsigned int)answer_number(&answer, word + 3);
        memcpy(entry, &pid, sizeof pid);
        memcpy(entry + 8, &memory, sizeof memory);
        if (stride >= 24)
            memcpy(entry + 16, instances, sizeof instances);
        if (stride >= 32)
            memcpy(entry + 24, &protected_memory, sizeof protected_memory);
    }
    return done(&answer);
}

#define PROCESSES(name)                                                                                                \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *buffer);                                  \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *buffer)                                   \
    {                                                                                                                  \
        return processes(#name, device, count, buffer);                                                                \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
