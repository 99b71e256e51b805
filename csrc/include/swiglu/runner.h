/*
 * runner.h - batches in threads of the library's own, which need no interpreter.
 *
 * An interpreter whose threads run a batch each hands its lock from one to the other a dozen times
 * a batch, and each hand-over wakes a thread. Here one thread of the interpreter's starts batches
 * and hears of their ends, by a descriptor that its event loop watches.
 *
 * Rules as in swiglu.h. A runner is for the device that is current when it is made. Any thread may
 * call its functions, at the same time too, but for its end.
 */
#ifndef SWIGLU_RUNNER_H_
#define SWIGLU_RUNNER_H_

#include "swiglu/transfer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of one batch, at most. */
#define SWIGLU_MAX_LAPS 4

typedef struct swiglu_runner swiglu_runner_t;

/* Makes one with so many threads, each of which runs a batch at a time. */
SWIGLU_API swiglu_status_t swiglu_runner_create(int32_t threads, swiglu_runner_t** runner);

/*
 * Its threads end once what was started is over; nobody waits for them, as a device that hangs lets
 * none go. What still runs must keep its memory. NULL is fine.
 */
SWIGLU_API void swiglu_runner_destroy(swiglu_runner_t* runner);

/*
 * Readable, for poll(2) and the like, while a batch that ended was not collected. The runner's; -1
 * for NULL.
 */
SWIGLU_API int32_t swiglu_runner_descriptor(swiglu_runner_t const* runner);

/*
 * Has one of the threads do swiglu_run_trip, then swiglu_read_laps. Nothing else may use the trip,
 * nor what it points to, until the batch was collected. The arrays may go when the call returns.
 *
 * `ticket` is the caller's number for it, not 0.
 */
SWIGLU_API swiglu_status_t swiglu_runner_start(swiglu_runner_t* runner, int64_t ticket,
                                               swiglu_trip_t const* trip,
                                               swiglu_span_t const* inputs, int64_t num_inputs,
                                               swiglu_span_t const* outputs, int64_t num_outputs,
                                               swiglu_lap_t const* laps, int32_t num_laps);

/* How a batch ended. */
typedef struct swiglu_ended {
  int64_t ticket; /* 0: there is none to collect */
  double host_s;  /* as of swiglu_run_trip */
  double laps_s[SWIGLU_MAX_LAPS];
  int32_t lost;   /* 1: the device can run nothing any more */
} swiglu_ended_t;

/*
 * Takes out the batch that ended first, if there is one, and returns the status that its calls had,
 * with their sentence. After one other than SWIGLU_OK its thread has waited for the device: nothing
 * of the batch is under way any more, or the device is lost and the status and sentence are those
 * of the wait.
 */
SWIGLU_API swiglu_status_t swiglu_runner_collect(swiglu_runner_t* runner, swiglu_ended_t* ended);

#ifdef __cplusplus
}
#endif

#endif /* SWIGLU_RUNNER_H_ */
