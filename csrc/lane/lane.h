/*
 * lane.h - connections whose requests repeat themselves, without an interpreter.
 *
 * Most clients send the same head, request line and headers, with each request of a size. What a head
 * means is found out by a parser and by routes, when it comes; here it is compared, byte by byte, with
 * heads whose meaning is known. Behind one of these come rows, which gather until the caller has a room
 * for them. Of all else nothing is made: its connection is given back, with what was read of it.
 *
 * Nothing here blocks, and nothing runs by itself: all calls of one lane come from one thread, whose
 * event loop watches the lane's descriptor. Times are seconds of CLOCK_MONOTONIC. The arguments are
 * not checked; the caller is of the same code.
 */
#ifndef LANE_LANE_H_
#define LANE_LANE_H_

#include <stdint.h>

#define LANE_API __attribute__((visibility("default")))
/* Changes with anything below. */
#define LANE_VERSION 4

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lane lane_t;

typedef struct lane_limits {
  int64_t batch_tokens;    /* of one bundle */
  int64_t room_bytes;      /* of its rows, and of its answers */
  int64_t heads;           /* known at a time; the oldest gives way */
  double keep_alive_s;     /* of a connection between two requests; then it is closed */
  double stall_s;          /* for the rest of a request; then the connection is given back */
  double send_s;           /* for a client to take its answer; then the connection is closed */
} lane_limits_t;

/* Where it is counted what becomes of requests. A histogram has a cell for each bound, one for what
   lies beyond, and one for the sum. */
typedef struct lane_counts {
  double const* bounds;
  int64_t num_bounds;
  double* receive;
  double* decode;
  double* encode;
  double* durations;
  double* ok;
  double* cancelled;
  double* last_ok_unix_s;
  double* connections_closed;
} lane_counts_t;

/* What a head means. */
typedef struct lane_head {
  char const* head; /* with the empty line */
  int64_t head_bytes;
  int64_t body_bytes;
  int64_t answer_bytes;
  int64_t tokens;
  int64_t group;    /* requests of one group can be in a bundle */
  char const* tail; /* the last headers of an answer, with the empty line */
  int64_t tail_bytes;
  char const* request_id; /* that the answer repeats; empty where the lane is to make one */
  int64_t request_id_bytes;
} lane_head_t;

/* What is to be seen from outside; true whenever no call is under way. */
typedef struct lane_state {
  int64_t connections;
  int64_t requests; /* whose clients wait for an answer */
  int64_t waiting_requests; /* those of them that are in no bundle yet */
  int64_t waiting_tokens;
  int64_t waiting_bytes;
  double oldest_s; /* when the first of these came; without one, infinity */
  int64_t given_back; /* connections for lane_take_back */
  int64_t unwanted;   /* bundles for lane_take_unwanted */
} lane_state_t;

/* Rows that were put into a room. */
typedef struct lane_bundle {
  int64_t group;
  int64_t requests;
  int64_t tokens;
  int64_t nbytes;
  double oldest_s; /* when the first of them came */
  double waited_s; /* until now, all of them together */
} lane_bundle_t;

/* What answers of a bundle have in common. The status line and the first headers; those behind the
   request's id. */
typedef struct lane_answer {
  char const* first;
  int64_t first_bytes;
  char const* second;
  int64_t second_bytes;
  double sent_s;    /* when the bundle was */
  double queue_s;   /* from then on */
  double execute_s;
} lane_answer_t;

/* An error: status line and first headers; what comes behind the request's id, with the body. */
typedef struct lane_refusal {
  char const* first;
  int64_t first_bytes;
  char const* second;
  int64_t second_bytes;
  double* count; /* where each is counted */
  int32_t closes; /* whether the connection is closed behind it */
} lane_refusal_t;

/* A connection that is the caller's again. */
typedef struct lane_given_back {
  int32_t descriptor;
  char const* read; /* what was read of it; until the next call of the lane */
  int64_t read_bytes;
} lane_given_back_t;

LANE_API int32_t lane_version(void);

/* NULL without memory or descriptors. The cells and bounds must outlive it. */
LANE_API lane_t* lane_create(lane_limits_t const* limits, lane_counts_t const* counts,
                             char const* id_prefix);

/* Closes its connections. NULL is fine. */
LANE_API void lane_destroy(lane_t* lane);

/* Readable while a connection has something for lane_turn. */
LANE_API int32_t lane_descriptor(lane_t const* lane);

LANE_API lane_state_t const* lane_state(lane_t const* lane);

/* 0, or -1 where it is too long or its body or answer does not fit a room. A head that is known keeps
   its meaning. */
LANE_API int32_t lane_learn(lane_t* lane, lane_head_t const* head);

/* Whether a head is known, still. */
LANE_API int32_t lane_knows(lane_t const* lane, char const* head, int64_t head_bytes);

/* Takes a connection on which no request is under way; 0, or -1 and it stays the caller's. */
LANE_API int32_t lane_adopt(lane_t* lane, int32_t descriptor);

/* Whether connections are taken. Those that are idle are given back at 0, the others once they are. */
LANE_API void lane_set_open(lane_t* lane, int32_t open);

/* Reads and writes what can be. Until the next turn no more rows and bytes than these wait for a room;
   the connection of a request that would be beyond is given back. */
LANE_API void lane_turn(lane_t* lane, int64_t gathered_tokens, int64_t gathered_bytes);

/* Looks after those who let the lane wait; a few times a second. */
LANE_API void lane_sweep(lane_t* lane);

/* Puts the oldest request that waits, and those of its group behind it, into a room, as bundle
   `number`. Returns how many; 0 where none waits. */
LANE_API int64_t lane_load(lane_t* lane, int64_t number, void* rows, lane_bundle_t* bundle);

/* Answers a bundle; the answers lie in the order of the rows. */
LANE_API void lane_answer(lane_t* lane, int64_t number, void const* answers,
                          lane_answer_t const* answer);

/* Refuses those of a bundle that came before `before_s`. The others wait again where `keep` is not 0, as
   long as before; else their connections are given back with their requests. The rows are as they were
   put. */
LANE_API void lane_dissolve(lane_t* lane, int64_t number, void const* rows, double before_s,
                            lane_refusal_t const* refusal, int32_t keep);

/* Refuses those that wait and came before `before_s`. */
LANE_API void lane_refuse_waiting(lane_t* lane, double before_s, lane_refusal_t const* refusal);

/* 1, or 0 where there is none. */
LANE_API int32_t lane_take_back(lane_t* lane, lane_given_back_t* found);

/* The number of a bundle all of whose clients have left, which still has to be answered or dissolved; 0
   where there is none. */
LANE_API int64_t lane_take_unwanted(lane_t* lane);

#ifdef __cplusplus
}
#endif

#endif /* LANE_LANE_H_ */
