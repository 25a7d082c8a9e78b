/* A stand-in for libnvidia-ml.so.1. Each call reads the file that NVML_STANDIN names:
 *
 *   all devices 2
 *   0 util 100                    device, key, value
 *   0 process 4242 9663676416     pid and bytes; one line for each process
 *   0 xid 79                      told once for each line written after the events were asked for
 *   call nvmlDeviceGetPowerUsage 15    this call returns 15; with -1 it makes NVML_STANDIN.hung and never returns
 *
 * A key that is missing is "not supported". Without the file no driver is loaded.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { void *device; u64 type, data; unsigned gpu_instance, compute_instance; } Event;
enum { OK = 0, NOT_SUPPORTED = 3, TOO_SMALL = 7, NO_DRIVER = 9, TIMEOUT = 10 };

/* The values of the nth line with this key; how many there are, or -1 without the file. */
static int find(const char *who, const char *key, int nth, u64 values[2])
{
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[200], first[80], second[80];
    int found = 0;
    if (!file)
        return -1;
    while (fgets(line, sizeof line, file)) {
        u64 read[2] = {0, 0};
        if (sscanf(line, "%79s %79s %llu %llu", first, second, &read[0], &read[1]) < 2)
            continue;
        if (strcmp(first, who) || strcmp(second, key))
            continue;
        if (found++ == nth)
            memcpy(values, read, sizeof read);
    }
    fclose(file);
    return found;
}

/* What this call returns instead of an answer. */
static int refused(const char *name)
{
    u64 code[2] = {0, 0};
    int found = find("call", name, 0, code);
    if (found > 0 && code[0] == (u64)-1) {
        char hung[4096];
        snprintf(hung, sizeof hung, "%s.hung", getenv("NVML_STANDIN"));
        close(creat(hung, 0600));
        for (;;)
            pause();
    }
    return found < 0 ? NO_DRIVER : (int)code[0];
}

static int value(const char *name, void *device, const char *key, u64 values[2])
{
    char who[16];
    int code = refused(name);
    snprintf(who, sizeof who, "%d", (int)(size_t)device - 1);
    if (code)
        return code;
    return find(who, key, 0, values) > 0 ? OK : NOT_SUPPORTED;
}

static int number(const char *name, void *device, const char *key, unsigned *out)
{
    u64 values[2];
    int code = value(name, device, key, values);
    if (!code)
        *out = (unsigned)values[0];
    return code;
}

static int text(const char *name, void *device, const char *what, char *out, unsigned size)
{
    int code = refused(name);
    if (!code)
        snprintf(out, size, "%s-%d", what, (int)(size_t)device - 1);
    return code;
}

const char *nvmlErrorString(int code) { return code == NO_DRIVER ? "Driver Not Loaded" : "Refused"; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return refused(__func__); }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(__func__, 0, "stand-in", out, size); }

int nvmlDeviceGetCount_v2(unsigned *out)
{
    u64 values[2] = {0, 0};
    int code = refused(__func__);
    find("all", "devices", 0, values);
    *out = (unsigned)values[0];
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    *out = (void *)(size_t)(index + 1);
    return refused(__func__);
}

int nvmlDeviceGetIndex(void *device, unsigned *out)
{
    *out = (unsigned)(size_t)device - 1;
    return refused(__func__);
}

int nvmlDeviceGetUUID(void *d, char *out, unsigned size) { return text(__func__, d, "GPU", out, size); }
int nvmlDeviceGetName(void *d, char *out, unsigned size) { return text(__func__, d, "Stand-in", out, size); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *out) { return number(__func__, d, "power_mw", out); }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *out) { return number(__func__, d, "limit_mw", out); }
int nvmlDeviceGetClockInfo(void *d, int kind, unsigned *out) { (void)kind; return number(__func__, d, "clock", out); }
int nvmlDeviceGetMaxClockInfo(void *d, int kind, unsigned *out) { (void)kind; return number(__func__, d, "max_clock", out); }
int nvmlDeviceGetTemperature(void *d, int kind, unsigned *out) { (void)kind; return number(__func__, d, "celsius", out); }
int nvmlDeviceGetCurrentClocksEventReasons(void *d, u64 *out)
{
    u64 values[2];
    int code = value(__func__, d, "reasons", values);
    if (!code)
        *out = values[0];
    return code;
}

int nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, u64 *out)
{
    u64 values[2];
    int code = value(__func__, d, "ecc", values);
    (void)kind, (void)counter;
    if (!code)
        *out = values[0];
    return code;
}

int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *pending)
{
    *pending = 0;
    return number(__func__, d, "mig", now);
}

int nvmlDeviceGetPcieThroughput(void *d, int way, unsigned *out)
{
    return number(__func__, d, way ? "pcie_rx_kb" : "pcie_tx_kb", out);
}

int nvmlDeviceGetUtilizationRates(void *d, Utilization *out)
{
    out->memory = 0;
    return number(__func__, d, "util", &out->gpu);
}

static int total(const char *who, u64 *used)
{
    u64 values[2] = {0, 0};
    int count = 0;
    for (*used = 0; find(who, "process", count, values) > count; count++)
        *used += values[1];
    return count;
}

int nvmlDeviceGetMemoryInfo(void *d, Memory *out)
{
    u64 values[2];
    char who[16];
    int code = value(__func__, d, "memory", values);
    snprintf(who, sizeof who, "%d", (int)(size_t)d - 1);
    if (code)
        return code;
    total(who, &out->used);
    out->total = values[0];
    out->free = out->total - out->used;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, Process *out)
{
    u64 values[2] = {0, 0}, used;
    char who[16];
    int code = refused(__func__), there;
    snprintf(who, sizeof who, "%d", (int)(size_t)d - 1);
    if (code)
        return code;
    there = total(who, &used);
    if ((unsigned)there > *count || (there && !out)) {
        *count = (unsigned)there;
        return TOO_SMALL;
    }
    *count = (unsigned)there;
    for (int each = 0; each < there; each++) {
        find(who, "process", each, values);
        out[each] = (Process){(unsigned)values[0], values[1], ~0u, ~0u};
    }
    return OK;
}

int nvmlEventSetCreate(void **out) { *out = out; return refused(__func__); }

static int told[64];

int nvmlDeviceRegisterEvents(void *d, u64 kinds, void *set)
{
    int index = (int)(size_t)d - 1, code = refused(__func__);
    u64 values[2];
    char who[16];
    (void)kinds, (void)set;
    snprintf(who, sizeof who, "%d", index);
    if (!code && index < 64)
        told[index] = find(who, "xid", 0, values);
    return code;
}

int nvmlEventSetWait_v2(void *set, Event *out, unsigned timeout_ms)
{
    u64 values[2] = {0, 0};
    char who[16];
    int code = refused(__func__);
    (void)set, (void)timeout_ms;
    for (int index = 0; !code && index < 64; index++) {
        snprintf(who, sizeof who, "%d", index);
        if (find(who, "xid", told[index], values) > told[index]) {
            told[index]++;
            *out = (Event){(void *)(size_t)(index + 1), 8, values[0], ~0u, ~0u};
            return OK;
        }
    }
    return code ? code : TIMEOUT;
}

/* No part of NVML: keeps a core busy, as a CUDA wait that spins does, until another thread stops it. */
void cudaStreamSynchronize(volatile int *stop)
{
    while (!*stop)
        ;
}
