/* From events to the inputs of an exported network, and from its logits to probabilities. C99, also C++; no dependencies.
 *
 *   ripe_stream_init(&stream, &params, window_us, hop_us, error)
 *   for every event, in order of time:
 *       while (ripe_next_step(&stream, event.t, &step)) run the step graph on step.x (see ripe_step)
 *       ripe_add(&stream, &event)
 *   at the end:  ripe_next_step(&stream, last_t + 1, ...), ripe_stream_free(&stream)
 *
 * Bins and windows are those of `ripe stream` to the microsecond. A window of `window_us` starts every `hop_us`, the
 * first one at the first event. It has `time_steps` bins, and bin k begins at start + ceil(k * window_us / time_steps).
 * Windows overlap; each one is a row with its own states. A causal network has one row and no windows: its bins follow
 * each other for ever, and a prediction is the mean of the logits of the last `time_steps` bins.
 *
 * A function that can fail returns 0 and writes one sentence into `error` (RIPE_ERROR_SIZE bytes).
 */
#ifndef RIPE_H
#define RIPE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RIPE_ERROR_SIZE 400
#define RIPE_MAX_WINDOW_US INT64_C(3600000000)
#define RIPE_MAX_WINDOWS 1024            /* that overlap at any time */
#define RIPE_MAX_TIME (INT64_C(1) << 62) /* times are between -RIPE_MAX_TIME and RIPE_MAX_TIME */
#define RIPE_SILENT_WINDOWS 4            /* of silence, after which a causal network starts again */

typedef struct {
    uint16_t x, y; /* column and row, from 0 on */
    uint8_t p;     /* 0 OFF, 1 ON */
    int64_t t;     /* microseconds */
} ripe_event;

/* The binning of a network, from its export.json: ripe_read_params in ripe_export.h. */
typedef struct {
    int sensor_width, sensor_height;                   /* of the camera; 0: not known */
    int crop_x, crop_y, crop_width, crop_height;       /* the part of it that is binned; width 0: all of it */
    int grid_height, grid_width;                       /* of the network's input */
    int time_steps, num_classes;
    int binary;          /* whether a cell holds 1 for any number of events */
    int causal;          /* whether the step graph gives logits; otherwise the tail graph does */
    int64_t duration_us; /* of the training clips, the usual window; 0: not known */
} ripe_params;

typedef struct {
    int64_t start_us, events;
    int step;      /* bins that have closed */
    float *counts; /* of the open bin [2, H, W] */
} ripe_window;

/* One run of the step graph. At step 0 all states are zeros; afterwards they are the `next.` outputs of the row's last
 * run. If `predict`, the row's window is full: run the tail graph, or average the last logits of a causal network. */
typedef struct {
    int row;
    int64_t step;    /* the graph's input `step` */
    const float *x;  /* the graph's input `x` [2, H, W]; valid until the next call */
    int predict;     /* a full window with at least one event */
    int64_t start_us, stop_us; /* of the window */
} ripe_step;

typedef struct {
    ripe_params params;
    int64_t window_us, hop_us;
    int rows, first, open; /* windows: a ring of `rows`, of which `open` are in use from `first` on */
    ripe_window *windows;
    float *x;
    size_t cells; /* 2 * H * W */
    int begun;
    int64_t now, due;   /* the last edge, and the next one */
    int64_t next_start; /* of a window */
    int64_t late;       /* events that came after their bin had closed, and were left out */
    /* a causal network: */
    int hop_steps;
    int64_t origin, index, steps, last_event_us;
    int64_t *starts, *counted; /* of the last `time_steps` bins: their starts, and numbers of events */
} ripe_stream;

/* The start of bin `index` of [start, start + span), also beyond the span. */
static inline int64_t ripe_edge(int64_t start, int64_t span, int steps, int64_t index) {
    int64_t part = index % steps * span;
    return start + index / steps * span + (part + steps - 1) / steps;
}

/* The index in [2, H, W] of the cell that contains the pixel's centre, or -1 outside the crop. */
static inline int64_t ripe_cell(const ripe_params *p, const ripe_event *e) {
    int64_t across = p->crop_width ? p->crop_width : p->sensor_width;
    int64_t down = p->crop_width ? p->crop_height : p->sensor_height;
    int64_t x = (int64_t)e->x - (p->crop_width ? p->crop_x : 0), y = (int64_t)e->y - (p->crop_width ? p->crop_y : 0);
    if (x < 0 || y < 0 || x >= across || y >= down) return -1;
    int64_t column = (2 * x + 1) * p->grid_width / (2 * across), row = (2 * y + 1) * p->grid_height / (2 * down);
    return ((e->p ? 1 : 0) * (int64_t)p->grid_height + row) * p->grid_width + column;
}

/* Softmax of the logits [steps, classes] averaged over the steps; returns the best class, or -1 if any is not finite. */
static inline int ripe_probabilities(const float *logits, int steps, int classes, double *probabilities) {
    double sum = 0;
    int best = 0;
    for (int c = 0; c < classes; c++) {
        double mean = 0;
        for (int k = 0; k < steps; k++) mean += logits[(size_t)k * (size_t)classes + (size_t)c];
        probabilities[c] = mean / steps;
        if (!isfinite(probabilities[c])) return -1;
        if (probabilities[c] > probabilities[best]) best = c;
    }
    const double top = probabilities[best];
    for (int c = 0; c < classes; c++) sum += probabilities[c] = exp(probabilities[c] - top);
    for (int c = 0; c < classes; c++) probabilities[c] /= sum;
    return best;
}

static inline void ripe_stream_free(ripe_stream *s) {
    for (int row = 0; s->windows && row < s->rows; row++) free(s->windows[row].counts);
    free(s->windows), free(s->x), free(s->starts), free(s->counted);
    memset(s, 0, sizeof *s);
}

/* window_us 0: as long as the training clips; hop_us 0: one bin. */
static inline int ripe_stream_init(
    ripe_stream *s, const ripe_params *params, int64_t window_us, int64_t hop_us, char *error
) {
    const int steps = params->time_steps;
    memset(s, 0, sizeof *s);
    if (!window_us) window_us = params->duration_us ? params->duration_us : 1500000;
    if (!hop_us) hop_us = (window_us + steps - 1) / steps;
    if (window_us < steps || window_us > RIPE_MAX_WINDOW_US) {
        snprintf(error, RIPE_ERROR_SIZE, "window_us: expected %d (1 us for each step) to %lld, got %lld", steps,
                 (long long)RIPE_MAX_WINDOW_US, (long long)window_us);
        return 0;
    }
    if (hop_us < 1 || hop_us > RIPE_MAX_TIME / 4 || (window_us + hop_us - 1) / hop_us > RIPE_MAX_WINDOWS) {
        snprintf(error, RIPE_ERROR_SIZE, "hop_us: expected one that makes at most %d windows of %lld us overlap, got %lld",
                 RIPE_MAX_WINDOWS, (long long)window_us, (long long)hop_us);
        return 0;
    }
    if (params->causal) { /* predictions come when a bin closes, so a hop is a whole number of bins */
        int64_t bins = hop_us > RIPE_MAX_TIME / steps ? 0 : hop_us * steps / window_us;
        bins = bins < 1 ? 1 : bins;
        if (ripe_edge(0, window_us, steps, bins) != hop_us) bins++;
        if (bins > INT32_MAX || ripe_edge(0, window_us, steps, bins) != hop_us) {
            snprintf(error, RIPE_ERROR_SIZE, "hop_us: expected a whole number of bins, for example %lld, got %lld",
                     (long long)ripe_edge(0, window_us, steps, 1), (long long)hop_us);
            return 0;
        }
        s->hop_steps = (int)bins;
    }
    s->params = *params, s->window_us = window_us, s->hop_us = hop_us;
    s->rows = params->causal ? 1 : (int)((window_us + hop_us - 1) / hop_us);
    s->cells = 2 * (size_t)params->grid_height * (size_t)params->grid_width;
    s->windows = (ripe_window *)calloc((size_t)s->rows, sizeof *s->windows);
    s->x = (float *)calloc(s->cells, sizeof *s->x);
    s->starts = (int64_t *)calloc((size_t)steps, sizeof *s->starts);
    s->counted = (int64_t *)calloc((size_t)steps, sizeof *s->counted);
    int whole = s->windows && s->x && s->starts && s->counted;
    for (int row = 0; whole && row < s->rows; row++)
        whole = (s->windows[row].counts = (float *)calloc(s->cells, sizeof(float))) != NULL;
    if (!whole) {
        snprintf(error, RIPE_ERROR_SIZE, "memory: expected room for %d windows, got none", s->rows);
        ripe_stream_free(s);
    }
    return whole;
}

static inline ripe_window *ripe_open_window(ripe_stream *s, int index) {
    return &s->windows[(s->first + index) % s->rows];
}

static inline void ripe_start_window(ripe_stream *s, int64_t start_us) {
    ripe_window *window = ripe_open_window(s, s->open++);
    window->start_us = start_us, window->events = 0, window->step = 0;
    memset(window->counts, 0, s->cells * sizeof(float));
}

/* The open bin of a window becomes the input `x` of its next step. */
static inline void ripe_take_counts(ripe_stream *s, ripe_window *window) {
    memcpy(s->x, window->counts, s->cells * sizeof(float));
    memset(window->counts, 0, s->cells * sizeof(float));
    for (size_t i = 0; s->params.binary && i < s->cells; i++) s->x[i] = s->x[i] > 0;
}

static inline int ripe_next_causal(ripe_stream *s, int64_t to_us, ripe_step *step) {
    const int steps = s->params.time_steps;
    ripe_window *bin = s->windows;
    while (s->due <= to_us) {
        const int silent = !bin->events && s->now - s->last_event_us >= RIPE_SILENT_WINDOWS * s->window_us;
        const int64_t later = s->origin + (to_us - s->origin) / s->window_us * s->window_us;
        if (silent) s->steps = 0; /* an empty state */
        if (silent && later > s->now) { /* by whole windows, so that bins keep their edges */
            s->now = s->origin = later, s->index = 1;
            s->due = ripe_edge(s->origin, s->window_us, steps, 1);
            continue;
        }
        const int64_t start = s->now, events = bin->events;
        if (events) s->last_event_us = s->due;
        s->now = s->due;
        s->due = ripe_edge(s->origin, s->window_us, steps, ++s->index);
        if (silent) continue;
        bin->events = 0;
        ripe_take_counts(s, bin);
        s->starts[s->steps % steps] = start, s->counted[s->steps % steps] = events;
        step->row = 0, step->step = s->steps++, step->x = s->x;
        step->start_us = s->starts[s->steps < steps ? 0 : s->steps % steps], step->stop_us = s->now;
        int64_t seen = 0;
        for (int k = 0; k < steps && k < s->steps; k++) seen += s->counted[k];
        step->predict = seen > 0 && s->steps >= steps && s->steps % s->hop_steps == 0;
        return 1;
    }
    return 0;
}

/* The next step to run, now that no event comes before `to_us`: 1, or 0 if there is none. */
static inline int ripe_next_step(ripe_stream *s, int64_t to_us, ripe_step *step) {
    if (!s->begun || to_us < s->due) return 0;
    if (s->params.causal) return ripe_next_causal(s, to_us, step);
    for (;;) {
        int empty = 1;
        int64_t due = s->next_start;
        ripe_window *window = NULL;
        for (int i = s->open - 1; i >= 0; i--) { /* the oldest comes first */
            ripe_window *one = ripe_open_window(s, i);
            int64_t edge = ripe_edge(one->start_us, s->window_us, s->params.time_steps, one->step + 1);
            if (edge <= due) due = edge, window = one;
            empty = empty && !one->events;
        }
        s->due = due;
        if (to_us < due) return 0;
        const int64_t ahead = to_us - s->next_start;
        if (empty && ahead >= s->window_us && ahead >= s->hop_us) { /* windows that end in silence need no network */
            int64_t ended = (ahead - s->window_us) / s->hop_us + 1, started = ahead / s->hop_us;
            s->next_start += (ended < started ? ended : started) * s->hop_us;
            s->first = (s->first + s->open) % s->rows, s->open = 0;
            s->now = s->next_start;
            continue;
        }
        s->now = due;
        if (!window) {
            ripe_start_window(s, due);
            s->next_start += s->hop_us;
            continue;
        }
        ripe_take_counts(s, window);
        step->row = (int)(window - s->windows), step->step = window->step++, step->x = s->x;
        step->start_us = window->start_us, step->stop_us = window->start_us + s->window_us;
        const int full = window->step == s->params.time_steps;
        step->predict = full && window->events > 0;
        if (full) s->first = (s->first + 1) % s->rows, s->open--; /* windows end in the order in which they start */
        return 1;
    }
}

/* Count an event, after ripe_next_step(s, event->t, ...) has returned 0. */
static inline void ripe_add(ripe_stream *s, const ripe_event *event) {
    const int64_t cell = ripe_cell(&s->params, event);
    if (cell < 0) return; /* outside the crop; such an event only advances the time */
    if (!s->begun) {
        s->begun = 1, s->now = s->origin = s->last_event_us = s->next_start = event->t, s->index = 1;
        ripe_start_window(s, event->t);
        s->next_start += s->hop_us;
        s->due = ripe_edge(event->t, s->window_us, s->params.time_steps, 1);
        if (!s->params.causal && s->next_start < s->due) s->due = s->next_start;
    }
    if (event->t < s->now) {
        s->late++;
        return;
    }
    for (int i = 0; i < s->open; i++) {
        ripe_window *window = ripe_open_window(s, i);
        window->counts[cell] += 1, window->events++;
    }
}

#endif
