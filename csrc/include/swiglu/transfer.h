/*
 * transfer.h - the rows of a batch between many host buffers and one device buffer, a call each way.
 *
 * A batch consists of requests, each with memory of its own; on the device its rows lie one behind
 * the other. Copied one by one from an interpreter they cost more host time than the kernels take.
 *
 *   - Spans of one batch that lie one behind the other on the host as well count as one.
 *   - A span of SWIGLU_DIRECT_BYTES or more that lies in page-locked memory is copied from or to
 *     where it is. What starts in such memory must lie in it to its end.
 *   - Everything else passes through page-locked pieces that are used in turn: while one is copied
 *     over the bus, the next is filled or emptied.
 *
 * Rules as in swiglu.h, except that some functions here wait for the device, as their comments say.
 * After a status other than SWIGLU_OK copies may be under way: synchronise before memory is reused.
 * Streams are cudaStream_t, events cudaEvent_t; both belong to the calling thread's current device.
 */
#ifndef SWIGLU_TRANSFER_H_
#define SWIGLU_TRANSFER_H_

#include "swiglu/swiglu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Shorter spans share a piece: a copy of its own takes longer than a memcpy of so many bytes. */
#define SWIGLU_DIRECT_BYTES 65536

/* Bytes of one request on the host; at least one. */
typedef struct swiglu_span {
  void* host;
  int64_t bytes;
} swiglu_span_t;

/* Page-locked pieces and an event for each. One call at a time may use it. */
typedef struct swiglu_staging swiglu_staging_t;

/*
 * Makes one on the current device out of `count` pieces of `piece_bytes` each, which lie one behind
 * the other in page-locked memory of the caller's.
 */
SWIGLU_API swiglu_status_t swiglu_staging_create(void* pinned, int64_t piece_bytes, int32_t count,
                                                 swiglu_staging_t** staging);

/* Frees its events, not its memory. NULL is fine. */
SWIGLU_API void swiglu_staging_destroy(swiglu_staging_t* staging);

/*
 * Threads that enqueue at the same time put each other to sleep on the driver's lock, and to wake one
 * takes 50 microseconds on a virtual machine, ten times what it waits for. So they take turns, for
 * which they wait awake: the functions here that enqueue by themselves, and whoever enqueues otherwise
 * between these two calls. The lock knows no owner, and is one for all devices.
 */
SWIGLU_API void swiglu_take_turn(void);
SWIGLU_API void swiglu_give_turn(void);

/*
 * Enqueues on `stream`: the event `begin`, the spans' bytes to consecutive addresses from `device`
 * on, the event `arrived`. Waits where a piece is still being copied. Spans that are copied from
 * where they are must stay until `arrived`; the others are free when the call returns.
 */
SWIGLU_API swiglu_status_t swiglu_send(swiglu_staging_t* staging, swiglu_span_t const* spans,
                                       int64_t count, void* device, void* stream, void* begin,
                                       void* arrived);

/*
 * Enqueues on `stream`: a wait for the event `after`, the copies from consecutive addresses from
 * `device` on to the spans, the event `end`; then waits until every span holds its bytes.
 * `host_s` becomes the seconds from the end of the last copy on.
 */
SWIGLU_API swiglu_status_t swiglu_receive(swiglu_staging_t* staging, void const* device,
                                          swiglu_span_t const* spans, int64_t count, void* stream,
                                          void* after, void* end, double* host_s);

/*
 * Makes a captured cudaGraph_t ready to be launched on the current device, and has `stream` upload
 * it there. The captured one may go afterwards.
 */
SWIGLU_API swiglu_status_t swiglu_graph_create(void* captured, void* stream, void** graph);

/* No launch of it may be under way. NULL is fine. */
SWIGLU_API void swiglu_graph_destroy(void* graph);

/*
 * All but the spans of one kind of batch in one set of buffers. Anything else stays the same.
 *
 * Where `x` is NULL, the graph holds the copies too: from the first piece of `upload`, to the first
 * of `download`. All of a batch must fit there; `graph`, `compute` and `end` are what is used
 * besides.
 */
typedef struct swiglu_trip {
  swiglu_staging_t* upload;
  void* x;      /* device: where the rows go */
  void* h2d;    /* stream */
  void* begin;  /* events, as in swiglu_send */
  void* arrived;
  void* graph;  /* of swiglu_graph_create: the kernels */
  void* compute; /* stream */
  void* done;   /* event: recorded behind the graph */
  swiglu_staging_t* download;
  void const* answers; /* device: where the kernels leave them */
  void* d2h;           /* stream */
  void* end;           /* event, as in swiglu_receive */
} swiglu_trip_t;

/*
 * swiglu_send, the graph behind `arrived`, swiglu_receive behind `done`; or swiglu_begin_trip and
 * swiglu_end_trip, where the graph holds the copies: a whole batch in one call. An interpreter
 * gives its lock away and takes it back once, where each call of its own could find it taken by
 * another thread.
 */
SWIGLU_API swiglu_status_t swiglu_run_trip(swiglu_trip_t const* trip, swiglu_span_t const* inputs,
                                           int64_t num_inputs, swiglu_span_t const* outputs,
                                           int64_t num_outputs, double* host_s);

/*
 * Of a trip whose graph holds the copies: copies the spans one behind the other to where it reads,
 * launches it, records `end`. Without spans it reads what is there. The spans are free when the
 * call returns.
 */
SWIGLU_API swiglu_status_t swiglu_begin_trip(swiglu_trip_t const* trip, swiglu_span_t const* inputs,
                                             int64_t num_inputs);

/*
 * Waits for the `end` of such a trip, then fills one span after the other. `host_s` becomes the
 * seconds since the event was found to have passed.
 */
SWIGLU_API swiglu_status_t swiglu_end_trip(swiglu_trip_t const* trip, swiglu_span_t const* outputs,
                                           int64_t num_outputs, double* host_s);

/* Two events that measure time, of which the second is recorded behind the first. */
typedef struct swiglu_lap {
  void* from;
  void* to;
} swiglu_lap_t;

/* The seconds of each lap, once all its events have passed. */
SWIGLU_API swiglu_status_t swiglu_read_laps(swiglu_lap_t const* laps, int32_t count,
                                            double* seconds);

/*
 * Asks again and again whether the event has passed, for so many seconds at most; `passed` becomes 1
 * or 0. An error of the device ends the wait as well: whoever reads what is behind the event hears
 * of it.
 */
SWIGLU_API swiglu_status_t swiglu_spin(void* event, double seconds, int32_t* passed);

#ifdef __cplusplus
}
#endif

#endif /* SWIGLU_TRANSFER_H_ */
