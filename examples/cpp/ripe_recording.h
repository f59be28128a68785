/* Recordings, event by event. C99, also C++; no dependencies.
 *
 * A recording is a file that `ripe data convert` writes, .bin (40-bit ATIS) or .csv/.txt (text), or packets on standard
 * input as docs/streaming.md describes.
 */
#ifndef RIPE_RECORDING_H
#define RIPE_RECORDING_H

#include <errno.h>

#include "ripe.h"

#define RIPE_PACKET_HEADER 16 /* bytes */
#define RIPE_PACKET_RECORD 13
#define RIPE_PACKET_EVENTS (1 << 20)

typedef struct {
    FILE *file;
    const char *path;
    char format;              /* 'b' .bin, 't' text, 'p' packets */
    int width, height;        /* of the sensor, from the first events on; 0 where the source does not say */
    int64_t offset;           /* .bin: the overflows so far */
    uint64_t place;           /* bytes, or lines of text, so far */
    uint32_t left;            /* events of the packet */
} ripe_reader;

static inline int ripe_bad(const ripe_reader *r, const char *field, const char *expected, const char *got, char *error) {
    snprintf(error, RIPE_ERROR_SIZE, "%.150s: %s: expected %s, got %.60s", r->path, field, expected, got);
    return -1;
}

static inline void ripe_close(ripe_reader *r) {
    if (r->file && r->file != stdin) fclose(r->file);
    r->file = NULL;
}

/* "-" is standard input; the format of a file is known by its name. */
static inline int ripe_open(ripe_reader *r, const char *path, char *error) {
    const char *dot = strrchr(path, '.');
    memset(r, 0, sizeof *r);
    r->path = path;
    r->format = !strcmp(path, "-") ? 'p' : !dot ? 0 : !strcmp(dot, ".bin") ? 'b'
              : !strcmp(dot, ".csv") || !strcmp(dot, ".txt") ? 't' : 0;
    if (!r->format) return ripe_bad(r, "recording", "a .bin, .csv or .txt file, or - for packets", "another", error), 0;
    r->file = r->format == 'p' ? stdin : fopen(path, "rb");
    if (!r->file) return ripe_bad(r, "recording", "a readable file", strerror(errno), error), 0;
    if (r->format == 'p') return 1;
    errno = 0;
    const int first = getc(r->file);
    if (first == EOF && ferror(r->file)) { /* such as a folder */
        ripe_bad(r, "recording", "a readable file", strerror(errno), error);
        ripe_close(r);
        return 0;
    }
    rewind(r->file);
    if (r->format == 't') return 1;
    const long size = fseek(r->file, 0, SEEK_END) ? -1 : ftell(r->file);
    rewind(r->file);
    if (size > 0 && size % 5 == 0) return 1;
    char got[60];
    snprintf(got, sizeof got, "%ld bytes", size);
    ripe_bad(r, "size", "whole records of 5 bytes", got, error);
    ripe_close(r);
    return 0;
}

static inline int64_t ripe_little(const unsigned char *bytes, int count) {
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--) value = value << 8 | bytes[i];
    return (int64_t)value;
}

/* `count` bytes: 1, 0 at the end of the file, or -1. */
static inline int ripe_bytes(ripe_reader *r, unsigned char *into, size_t count, char *error) {
    errno = 0;
    const size_t got = fread(into, 1, count, r->file);
    r->place += got;
    if (got == count) return 1;
    if (ferror(r->file)) return ripe_bad(r, "recording", "a readable file", strerror(errno), error);
    return got ? ripe_bad(r, "size", "whole records", "a recording that was cut off", error) : 0;
}

static inline int ripe_read_bin(ripe_reader *r, ripe_event *e, char *error) {
    unsigned char b[5];
    for (;;) {
        const int got = ripe_bytes(r, b, sizeof b, error);
        if (got <= 0) return got;
        if (b[1] != 240) break;
        r->offset += 1 << 13; /* not an event: later times are as much later */
    }
    e->x = b[0], e->y = b[1], e->p = b[2] >> 7;
    e->t = r->offset + ((int64_t)(b[2] & 127) << 16 | b[3] << 8 | b[4]);
    return 1;
}

static inline int ripe_read_packet(ripe_reader *r, ripe_event *e, char *error) {
    unsigned char b[RIPE_PACKET_HEADER];
    while (!r->left) {
        const int got = ripe_bytes(r, b, RIPE_PACKET_HEADER, error);
        if (got <= 0) return got;
        const int64_t width = ripe_little(b + 6, 2), height = ripe_little(b + 8, 2), count = ripe_little(b + 12, 4);
        if (memcmp(b, "REVT\1\0", 6) || b[10] || b[11] || !width || !height || count > RIPE_PACKET_EVENTS)
            return ripe_bad(r, "packet", "a header as docs/streaming.md describes", "other bytes", error);
        if (count && r->width && (width != r->width || height != r->height))
            return ripe_bad(r, "packet", "the sensor of the packets before", "another", error);
        if (count) r->width = (int)width, r->height = (int)height;
        r->left = (uint32_t)count;
    }
    const int got = ripe_bytes(r, b, RIPE_PACKET_RECORD, error);
    if (got <= 0) return got ? got : ripe_bad(r, "packet", "all of its events", "an end", error);
    r->left--;
    e->t = ripe_little(b, 8), e->x = (uint16_t)ripe_little(b + 8, 2), e->y = (uint16_t)ripe_little(b + 10, 2);
    e->p = b[12];
    return 1;
}

static inline int ripe_read_text(ripe_reader *r, ripe_event *e, char *error) {
    char line[128], field[40];
    while (fgets(line, sizeof line, r->file)) {
        long long n[4] = {0, 0, 0, 0};
        int end = 0;
        line[strcspn(line, "\r\n")] = 0;
        snprintf(field, sizeof field, "line %llu", (unsigned long long)++r->place);
        if (!line[0] || !strcmp(line, "x,y,t,p")) continue;
        if (sscanf(line, "%5lld %5lld%n", &n[0], &n[1], &end) == 2 && !line[end] && !r->width && n[0] > 0 && n[1] > 0 &&
            n[0] <= 65536 && n[1] <= 65536) {
            r->width = (int)n[0], r->height = (int)n[1];
            continue;
        }
        if (sscanf(line, "%5lld,%5lld,%19lld,%1lld%n", &n[0], &n[1], &n[2], &n[3], &end) != 4 || line[end] || n[0] < 0 ||
            n[1] < 0 || n[0] >= 65536 || n[1] >= 65536 || n[3] < 0 || n[3] > 1)
            return ripe_bad(r, field, "x,y,t,p in whole numbers", line, error);
        e->x = (uint16_t)n[0], e->y = (uint16_t)n[1], e->t = n[2], e->p = (uint8_t)n[3];
        return 1;
    }
    return ferror(r->file) ? ripe_bad(r, "recording", "a readable file", strerror(errno), error) : 0;
}

/* The next event: 1, 0 at the end, or -1. */
static inline int ripe_read_event(ripe_reader *r, ripe_event *e, char *error) {
    const int got = r->format == 'b' ? ripe_read_bin(r, e, error)
                  : r->format == 't' ? ripe_read_text(r, e, error) : ripe_read_packet(r, e, error);
    if (got > 0 && (e->p > 1 || e->t <= -RIPE_MAX_TIME || e->t >= RIPE_MAX_TIME))
        return ripe_bad(r, "event", "a polarity of 0 or 1 and a time within 62 bits", "another", error);
    return got;
}

/* Whether an event comes from the network's sensor; a network that does not know its sensor takes the source's. */
static inline int ripe_check_sensor(const ripe_reader *r, const ripe_event *e, ripe_params *p, char *error) {
    if (!p->sensor_width) {
        if (!r->width)
            return ripe_bad(r, "sensor_size", "a recording that names it, as the network does not", "none", error), 0;
        p->sensor_width = r->width, p->sensor_height = r->height;
        if (!p->crop_width && (p->grid_width > r->width || p->grid_height > r->height))
            return ripe_bad(r, "sensor_size", "a sensor as large as the network's grid", "a smaller one", error), 0;
    }
    const int other = r->width && (r->width != p->sensor_width || r->height != p->sensor_height);
    if (!other && e->x < p->sensor_width && e->y < p->sensor_height) return 1;
    snprintf(error, RIPE_ERROR_SIZE, "%.150s: sensor_size: expected %dx%d, which the network was trained on, got %s%d%c%d",
             r->path, p->sensor_width, p->sensor_height, other ? "" : "an event at ", other ? r->width : e->x,
             other ? 'x' : ',', other ? r->height : e->y);
    return 0;
}

#endif
