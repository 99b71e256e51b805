/*
 * swiglu.h - C ABI of the fused SwiGLU kernels for NVIDIA Hopper (sm_90a).
 *
 *     out[m, j] = round(act(gate[m, j]) * up[m, j])
 *     gate = x . W_gate^T,  up = x . W_up^T            accumulated in FP32
 *
 *     M = tokens, N = intermediate_size, K = hidden_size
 *     x [M, K], W_gate and W_up [N, K], out [M, N], all row-major
 *
 * and, for few tokens, of the down projection behind them (the functions swiglu_down_...):
 *
 *     out[m, j] = round(x . W_down^T)                  accumulated in FP32
 *
 *     M = tokens, N = hidden_size, K = intermediate_size; W_down [N, K]
 *
 * The activation is applied to the FP32 sum and the product is rounded once. The same input gives
 * the same bits, run after run, for the same kernel configuration.
 *
 * Rules of every function here:
 *   - it returns a status (a few pure queries return their value) and never throws, prints,
 * allocates device memory or synchronises;
 *   - it is thread-safe, and works on the calling thread's current CUDA device;
 *   - after a status other than SWIGLU_OK nothing was enqueued and the output is untouched;
 *   - stream, workspace and tensors belong to the caller and must stay alive until the work that
 * was enqueued on the stream has run.
 *
 * This header is C11 and C++; it needs no CUDA header.
 */
#ifndef SWIGLU_SWIGLU_H_
#define SWIGLU_SWIGLU_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define SWIGLU_API
#else
#define SWIGLU_API __attribute__((visibility("default")))
#endif

/* Raised whenever a struct, an enumerator's value or a function's meaning changes. */
#define SWIGLU_ABI_VERSION 3

/* Why a call was refused. Reasons, not places: swiglu_last_error() says where. */
typedef enum swiglu_status {
  SWIGLU_OK = 0,
  SWIGLU_INVALID_ARGUMENT = 1, /* a null pointer, an unknown enumerator, a struct of another size */
  SWIGLU_INVALID_SHAPE = 2,    /* an extent or a stride outside the documented range */
  SWIGLU_MISALIGNED = 3,       /* a pointer or stride off its 16-byte grid */
  SWIGLU_NOT_COMPILED = 4,     /* the configuration does not exist for this dtype and activation */
  SWIGLU_UNSUPPORTED_DEVICE = 5,  /* no GPU code in this build, or the device is not sm_90 */
  SWIGLU_WORKSPACE_TOO_SMALL = 6, /* less than swiglu_workspace_size() asked for */
  SWIGLU_CUDA_ERROR = 7,          /* the CUDA runtime refused; its words are in the sentence */
  SWIGLU_INTERNAL = 8             /* our bug */
} swiglu_status_t;

/* Element type of x, the weights and out. */
typedef enum swiglu_dtype { SWIGLU_BF16 = 0, SWIGLU_FP16 = 1 } swiglu_dtype_t;

/* What the gate goes through: x * sigmoid(x); GELU by its tanh form; max(x, 0). */
typedef enum swiglu_activation {
  SWIGLU_SILU = 0,
  SWIGLU_GELU_TANH = 1,
  SWIGLU_RELU = 2
} swiglu_activation_t;

/* Order in which output tiles are worked on: consecutive tiles differ in M, or in N. */
typedef enum swiglu_raster {
  SWIGLU_RASTER_AUTO = 0,
  SWIGLU_RASTER_ALONG_M = 1,
  SWIGLU_RASTER_ALONG_N = 2
} swiglu_raster_t;

/*
 * The kernels are launched so that they may start while the one before on the stream still runs,
 * and wait for it before they touch a tensor. With SWIGLU_WEIGHTS_CONSTANT they start to load the
 * weights before that: only for weights that the work enqueued last on the stream does not write.
 */
typedef enum swiglu_flag { SWIGLU_WEIGHTS_CONSTANT = 1 } swiglu_flag_t;

/* In swiglu_args_t.config: let swiglu_select() choose; in swiglu_down_args_t.config:
   swiglu_down_select(). */
#define SWIGLU_CONFIG_AUTO (-1)

/*
 * One fused gate/up product. Fill with zeros first, then set struct_size and what is needed.
 * All extents and strides are in elements.
 */
typedef struct swiglu_args {
  uint32_t struct_size; /* sizeof(swiglu_args_t), checked */
  int32_t dtype;        /* swiglu_dtype_t */
  int32_t activation;   /* swiglu_activation_t */
  int32_t config;       /* id of a configuration, or SWIGLU_CONFIG_AUTO */
  int32_t raster;       /* swiglu_raster_t; AUTO: what swiglu_select() says for this problem; read
                           where the configuration's swap_ab is 0, as are swizzle and num_sms */
  int32_t swizzle;      /* clusters of tiles that are neighbours across the raster and worked on
                           together, for L2 reuse: 1 .. 1024; 0: what swiglu_select() says */
  int32_t num_sms;      /* multiprocessors to use; 0: all of the device */
  int32_t flags;        /* 0 or swiglu_flag_t */

  int64_t m; /* tokens, 0 .. 2^31 - 1024; m * n at most 2^43; 0 enqueues nothing. A configuration
                with swap_ab takes only so many that its CTAs are fewer than 2^31 */
  int64_t n; /* intermediate_size, a multiple of 8, 8 .. 2^30 - 1024 */
  int64_t k; /* hidden_size, a multiple of 8, 0 .. 2^31 - 1024; 0 fills out with zeros */

  /* Tensors: device pointers aligned to 16 bytes; strides multiples of 8, below 2^39. */

  /* x [m, k], rows x_row_stride >= k apart. May be NULL if m or k is 0. */
  void const* x;
  int64_t x_row_stride;

  /* Weights [2n, k]: the n gate rows, then the n up rows, gate_up_row_stride >= k apart;
     n * gate_up_row_stride < 2^39. May be NULL if m or k is 0. */
  void const* gate_up;
  int64_t gate_up_row_stride;

  /* out [m, n], rows out_row_stride >= n apart; must not overlap an input. May be NULL for m 0. */
  void* out;
  int64_t out_row_stride;
} swiglu_args_t;

/*
 * One down projection, for few tokens: any number is right, beyond some 128 others are faster. Fill
 * with zeros first, then set struct_size and what is needed. All extents and strides are in
 * elements.
 */
typedef struct swiglu_down_args {
  uint32_t struct_size; /* sizeof(swiglu_down_args_t), checked */
  int32_t dtype;        /* swiglu_dtype_t */
  int32_t config;       /* id of a configuration of the down projection, or SWIGLU_CONFIG_AUTO */
  int32_t flags;        /* 0 or swiglu_flag_t */

  int64_t m; /* tokens, 0 .. 2^31 - 1024; 0 enqueues nothing */
  int64_t n; /* hidden_size, a multiple of 8, 8 .. 2^30 - 1024; m * n at most 2^43 */
  int64_t k; /* intermediate_size, a multiple of 8, 0 .. 2^31 - 1024; 0 fills out with zeros */

  /* Tensors: device pointers aligned to 16 bytes; strides multiples of 8, below 2^39. */

  /* x [m, k], the gated intermediate, rows x_row_stride >= k apart. May be NULL if m or k is 0. */
  void const* x;
  int64_t x_row_stride;

  /* Weights [n, k], rows weight_row_stride >= k apart. May be NULL if m or k is 0. */
  void const* weight;
  int64_t weight_row_stride;

  /* out [m, n], rows out_row_stride >= n apart; must not overlap an input. May be NULL for m 0. */
  void* out;
  int64_t out_row_stride;
} swiglu_down_args_t;

/*
 * A kernel configuration: one compiled tile shape and schedule of one of two kernels, or of the
 * down projection.
 *
 *   kernel 0   the down projection.
 *   kernel 1   two passes over K for an output tile: the gate, activated in registers and kept there
 *              in 16 bits, then up. Its result has two roundings instead of one.
 *   kernel 2   one pass, gate and up columns interleaved in the accumulator.
 */
typedef struct swiglu_config {
  uint32_t struct_size; /* set by the caller to sizeof(swiglu_config_t), checked */
  int32_t id;           /* what swiglu_args_t.config takes; stable within one ABI version */
  int32_t kernel;       /* 0, 1 or 2 */
  int32_t tile_m;       /* output tile of one CTA in tokens */
  int32_t tile_n;       /* in columns of the output; kernel 2's accumulator is twice as wide */
  int32_t tile_k;       /* step along K of one pipeline stage */
  int32_t cluster_m;    /* CTAs that share loads by multicast, along tokens */
  int32_t cluster_n;    /* and along N */
  int32_t cooperative;  /* 1: two warpgroups on one tile; 0: pingpong, each on its own */
  int32_t granularity;  /* columns of gate, then of up, in the accumulator: 8 or 1; 0: one of the two
                           at a time, in kernel 1; -1: weights must be interleaved in memory by 8
                           rows already. Of the down projection 0 */
  int32_t swap_ab;      /* 1: for few tokens, the weights are the M operand of the tensor cores */
  int32_t split_k;      /* CTAs, a cluster, that share the sum over K of one tile; 1 without
                           swap_ab */
  int32_t all_types;    /* 1: compiled for every dtype and activation; 0: only for bf16 with SiLU */
  int32_t comparison;   /* 1: never chosen, there to be measured against another */
  char const* name;     /* e.g. "pp_128x192_c2x1", "k1_128x128_c2x1" or, with swap_ab,
                           "sm_16x64_k128_s4_p1_c1_t0" (tokens x weight rows, tile_k,
                           stages, split_k, cluster_n, steps along K by which a tile starts
                           later than the one before); static storage. The tile in it is the
                           accumulator's */
} swiglu_config_t;

/* What swiglu_select() chose. */
typedef struct swiglu_choice {
  int32_t config;
  int32_t raster; /* ALONG_M or ALONG_N, never AUTO */
  int32_t swizzle;
} swiglu_choice_t;

/* SWIGLU_ABI_VERSION this library was built with. Check it right after loading. */
SWIGLU_API uint32_t swiglu_abi_version(void);

/* "key=value" pairs separated by spaces: library, CUTLASS and CUDA versions. Static storage. */
SWIGLU_API const char* swiglu_build_info(void);

/*
 * The sentence for the calling thread's last status other than SWIGLU_OK: argument, rule and value.
 * "" before the first. Valid until this thread's next failing call.
 */
SWIGLU_API const char* swiglu_last_error(void);

/* "SWIGLU_MISALIGNED" for SWIGLU_MISALIGNED, and so on; "unknown status" for anything else. */
SWIGLU_API const char* swiglu_status_name(swiglu_status_t status);

/* Number of configurations; swiglu_get_config() takes 0 .. count - 1. */
SWIGLU_API int32_t swiglu_config_count(void);

/* Describes configuration number `index` into *config. */
SWIGLU_API swiglu_status_t swiglu_get_config(int32_t index, swiglu_config_t* config);

/*
 * The configuration, raster and swizzle that swiglu_launch() uses where the caller leaves them
 * open. A pure function of its arguments: it needs no GPU. m, n >= 1; num_sms >= 1.
 */
SWIGLU_API swiglu_status_t swiglu_select(int64_t m, int64_t n, int64_t k, int32_t dtype,
                                         int32_t activation, int32_t num_sms,
                                         swiglu_choice_t* choice);

/* Everything swiglu_launch() would refuse before it looks at the device; needs no GPU. */
SWIGLU_API swiglu_status_t swiglu_validate(swiglu_args_t const* args);

/* Bytes of device workspace that swiglu_launch() needs for these arguments, 16-byte aligned; may be
 * 0. */
SWIGLU_API swiglu_status_t swiglu_workspace_size(swiglu_args_t const* args, size_t* bytes);

/*
 * Enqueues the product on `stream` (a cudaStream_t; NULL is the legacy default stream). Safe under
 * CUDA graph capture. `workspace` may be NULL if swiglu_workspace_size() said 0.
 */
SWIGLU_API swiglu_status_t swiglu_launch(swiglu_args_t const* args, void* workspace,
                                         size_t workspace_bytes, void* stream);

/*
 * The same for the down projection: number of configurations, one of them (its id is its index),
 * the choice, validation, launch. It needs no workspace.
 */
SWIGLU_API int32_t swiglu_down_config_count(void);
SWIGLU_API swiglu_status_t swiglu_down_get_config(int32_t index, swiglu_config_t* config);
SWIGLU_API swiglu_status_t swiglu_down_select(int64_t m, int64_t n, int64_t k, int32_t dtype,
                                              int32_t num_sms, int32_t* choice);
SWIGLU_API swiglu_status_t swiglu_down_validate(swiglu_down_args_t const* args);
SWIGLU_API swiglu_status_t swiglu_down_launch(swiglu_down_args_t const* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SWIGLU_SWIGLU_H_ */
