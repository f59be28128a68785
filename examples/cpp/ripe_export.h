/* export.json of an exported network: a reader of JSON, and the binning. C99, also C++; no dependencies. */
#ifndef RIPE_EXPORT_H
#define RIPE_EXPORT_H

#include <errno.h>

#include "ripe.h"

#define RIPE_MAX_DEPTH 64       /* of nested values */
#define RIPE_MAX_JSON (1 << 24) /* bytes */
#define RIPE_MAX_SIDE 65536     /* of a sensor or a grid */
#define RIPE_MAX_STEPS 4096

/* ---- JSON: the text is searched in place; a value is a pointer to its first character ---- */

static inline const char *ripe_json_blank(const char *at) {
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') at++;
    return at;
}

/* Behind the string or value that begins at `at`, or NULL if it is damaged. */
static inline const char *ripe_json_string_end(const char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && !*++at) return NULL;
    return *at ? at + 1 : NULL;
}

static inline const char *ripe_json_end(const char *at, int depth) {
    if (*at == '"') return ripe_json_string_end(at);
    if (*at != '{' && *at != '[') {
        const size_t length = strcspn(at, ",]} \t\r\n\"[{:");
        return length ? at + length : NULL;
    }
    const char close = *at == '{' ? '}' : ']';
    const int object = *at == '{';
    if (depth >= RIPE_MAX_DEPTH) return NULL;
    at = ripe_json_blank(at + 1);
    if (*at == close) return at + 1;
    for (;;) {
        if (object) {
            if (*at != '"' || !(at = ripe_json_string_end(at))) return NULL;
            at = ripe_json_blank(at);
            if (*at++ != ':') return NULL;
            at = ripe_json_blank(at);
        }
        if (!(at = ripe_json_end(at, depth + 1))) return NULL;
        at = ripe_json_blank(at);
        if (*at == close) return at + 1;
        if (*at++ != ',') return NULL;
        at = ripe_json_blank(at);
    }
}

/* The value at a dotted path of names and indices, such as "labels.data.grid.0"; NULL if there is none. The document
 * is whole: ripe_json_end(document, 0) is not NULL. */
static inline const char *ripe_json_get(const char *value, const char *path) {
    while (*path) {
        const size_t length = strcspn(path, ".");
        const char kind = *value;
        long index = kind == '[' ? strtol(path, NULL, 10) : 0;
        if (kind != '{' && kind != '[') return NULL;
        value = ripe_json_blank(value + 1);
        for (;; value = ripe_json_blank(value + 1)) {
            int found = index-- == 0;
            if (*value == '}' || *value == ']') return NULL;
            if (kind == '{') {
                const char *end = ripe_json_string_end(value);
                found = (size_t)(end - value) == length + 2 && !memcmp(value + 1, path, length);
                value = ripe_json_blank(ripe_json_blank(end) + 1);
            }
            if (found) break;
            value = ripe_json_blank(ripe_json_end(value, 0));
            if (*value != ',') return NULL;
        }
        path += length + (path[length] == '.');
    }
    return value;
}

static inline int ripe_json_is(const char *document, const char *path, const char *text) {
    const char *value = ripe_json_get(document, path);
    return value && !strncmp(value, text, strlen(text)) && (size_t)(ripe_json_end(value, 0) - value) == strlen(text);
}

/* An integer from `least` to `most`. */
static inline int ripe_json_int(const char *document, const char *path, int64_t least, int64_t most, int64_t *into,
                                char *error) {
    const char *value = ripe_json_get(document, path), *end = value ? ripe_json_end(value, 0) : NULL;
    char *stop = NULL;
    errno = 0;
    const long long number = value && (*value == '-' || (*value >= '0' && *value <= '9')) ? strtoll(value, &stop, 10) : 0;
    if (stop && stop == end && !errno && number >= least && number <= most) return *into = number, 1;
    snprintf(error, RIPE_ERROR_SIZE, "export.json: %s: expected an int from %lld to %lld, got %.*s", path,
             (long long)least, (long long)most, value ? (int)(end - value > 40 ? 40 : end - value) : 7,
             value ? value : "nothing");
    return 0;
}

/* ---- export.json ---- */

/* The folder's export.json as text, or NULL; free it. */
static inline char *ripe_read_json(const char *folder, char *error) {
    const size_t length = strlen(folder) + sizeof "/export.json";
    char *path = (char *)malloc(length), *text = (char *)malloc(RIPE_MAX_JSON + 2);
    FILE *file = NULL;
    int whole = 0;
    if (path && text) {
        snprintf(path, length, "%s/export.json", folder);
        errno = 0;
        if ((file = fopen(path, "rb")) != NULL) {
            const size_t size = fread(text, 1, RIPE_MAX_JSON + 1, file);
            text[size] = 0;
            const char *start = ripe_json_blank(text), *end = *start == '{' ? ripe_json_end(start, 0) : NULL;
            whole = !ferror(file) && size <= RIPE_MAX_JSON && strlen(text) == size && end && !*ripe_json_blank(end);
            if (whole) memmove(text, start, strlen(start) + 1);
        }
        if (!whole)
            snprintf(error, RIPE_ERROR_SIZE, "%.200s: expected a JSON file of ripe export, got %s", path,
                     errno ? strerror(errno) : "something else");
    } else {
        snprintf(error, RIPE_ERROR_SIZE, "memory: expected room for export.json, got none");
    }
    if (file) fclose(file);
    free(path);
    if (!whole) free(text), text = NULL;
    return text;
}

static inline int ripe_wrong(const char *document, const char *path, const char *expected, char *error) {
    const char *value = ripe_json_get(document, path);
    const long size = value ? (long)(ripe_json_end(value, 0) - value) : 7;
    snprintf(error, RIPE_ERROR_SIZE, "export.json: %s: expected %s, got %.*s", path, expected, (int)(size > 40 ? 40 : size),
             value ? value : "nothing");
    return 0;
}

static inline int ripe_read_params(const char *json, ripe_params *params, char *error) {
    static const char *const sensor[] = {"labels.data.sensor_size.0", "labels.data.sensor_size.1"};
    static const char *const crop[] = {"labels.data.crop.0", "labels.data.crop.1", "labels.data.crop.2",
                                       "labels.data.crop.3"};
    int64_t n[4] = {0, 0, 0, 0};
    memset(params, 0, sizeof *params);
    if (!ripe_json_is(json, "format", "\"ripe-export\"")) return ripe_wrong(json, "format", "ripe-export", error);
    if (!ripe_json_is(json, "to", "\"onnx\"")) return ripe_wrong(json, "to", "onnx", error);
    if (!ripe_json_is(json, "architecture", "\"ripe-mambaspike\""))
        return ripe_wrong(json, "architecture", "ripe-mambaspike, which has a step graph", error);
    if (!ripe_json_int(json, "time_steps", 1, RIPE_MAX_STEPS, &n[0], error)) return 0;
    if (!ripe_json_int(json, "config.num_classes", 1, 1 << 20, &n[1], error)) return 0;
    if (!ripe_json_int(json, "grid.0", 1, RIPE_MAX_SIDE, &n[2], error)) return 0;
    if (!ripe_json_int(json, "grid.1", 1, RIPE_MAX_SIDE, &n[3], error)) return 0;
    params->time_steps = (int)n[0], params->num_classes = (int)n[1];
    params->grid_height = (int)n[2], params->grid_width = (int)n[3];
    params->causal = ripe_json_is(json, "config.causal", "true");
    if (ripe_json_is(json, "labels", "null")) return 1; /* a network that was not trained by ripe train */
    if (!ripe_json_is(json, "labels.data.by", "\"time\""))
        return ripe_wrong(json, "labels.data.by", "time: bins by count are known only when a recording has ended", error);
    params->binary = ripe_json_is(json, "labels.data.binary", "true");
    if (!ripe_json_is(json, "labels.data.duration_us", "null") &&
        !ripe_json_int(json, "labels.data.duration_us", 1, RIPE_MAX_TIME, &params->duration_us, error))
        return 0;
    if (!ripe_json_is(json, "labels.data.sensor_size", "null")) {
        for (int i = 0; i < 2; i++)
            if (!ripe_json_int(json, sensor[i], 1, RIPE_MAX_SIDE, &n[i], error)) return 0;
        params->sensor_width = (int)n[0], params->sensor_height = (int)n[1];
    }
    if (!ripe_json_is(json, "labels.data.crop", "null")) {
        for (int i = 0; i < 4; i++)
            if (!ripe_json_int(json, crop[i], i / 2, RIPE_MAX_SIDE, &n[i], error)) return 0;
        params->crop_x = (int)n[0], params->crop_y = (int)n[1];
        params->crop_width = (int)n[2], params->crop_height = (int)n[3];
    }
    return 1;
}

#endif
