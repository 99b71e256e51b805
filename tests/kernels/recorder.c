/* Stands in for libswiglu.so where there is no GPU: keeps what it was called with, answers as told. */
#include <string.h>

#include "swiglu/swiglu.h"

static swiglu_args_t last_args;
static swiglu_down_args_t last_down_args;
static void* last_stream;
static void* last_workspace;
static size_t last_workspace_bytes;
static int launches;
static int answer;
static size_t wanted_bytes;

SWIGLU_API void recorder_reset(int status, size_t workspace_bytes) {
  memset(&last_args, 0, sizeof last_args);
  memset(&last_down_args, 0, sizeof last_down_args);
  last_stream = last_workspace = NULL;
  last_workspace_bytes = 0;
  launches = 0;
  answer = status;
  wanted_bytes = workspace_bytes;
}
SWIGLU_API swiglu_args_t const* recorder_args(void) { return &last_args; }
SWIGLU_API swiglu_down_args_t const* recorder_down_args(void) { return &last_down_args; }
SWIGLU_API void* recorder_stream(void) { return last_stream; }
SWIGLU_API void* recorder_workspace(void) { return last_workspace; }
SWIGLU_API size_t recorder_workspace_bytes(void) { return last_workspace_bytes; }
SWIGLU_API int recorder_launches(void) { return launches; }

uint32_t swiglu_abi_version(void) { return RECORDER_ABI_VERSION; }
const char* swiglu_build_info(void) { return "recorder=1"; }
const char* swiglu_last_error(void) { return "k: must be a multiple of 8, is 900"; }
const char* swiglu_status_name(swiglu_status_t status) {
  (void)status;
  return "";
}
int32_t swiglu_config_count(void) { return 1; }
swiglu_status_t swiglu_get_config(int32_t index, swiglu_config_t* config) {
  swiglu_config_t only = {sizeof only, index, 2, 128, 96, 64, 2, 1, 0, 8, 0, 1, 1, 0, "pp_128x192_c2x1"};
  *config = only;
  return SWIGLU_OK;
}
swiglu_status_t swiglu_select(int64_t m, int64_t n, int64_t k, int32_t dtype, int32_t activation,
                              int32_t num_sms, swiglu_choice_t* choice) {
  swiglu_choice_t made = {(int32_t)(m + n + k + dtype + activation + num_sms), 2, 4};
  *choice = made;
  return (swiglu_status_t)answer;
}
swiglu_status_t swiglu_validate(swiglu_args_t const* args) {
  (void)args;
  return SWIGLU_OK;
}
swiglu_status_t swiglu_workspace_size(swiglu_args_t const* args, size_t* bytes) {
  (void)args;
  *bytes = wanted_bytes;
  return SWIGLU_OK;
}
swiglu_status_t swiglu_launch(swiglu_args_t const* args, void* workspace, size_t workspace_bytes,
                              void* stream) {
  last_args = *args;
  last_stream = stream;
  last_workspace = workspace;
  last_workspace_bytes = workspace_bytes;
  ++launches;
  if (workspace_bytes < wanted_bytes) return SWIGLU_WORKSPACE_TOO_SMALL;
  return (swiglu_status_t)answer;
}
int32_t swiglu_down_config_count(void) { return 1; }
swiglu_status_t swiglu_down_get_config(int32_t index, swiglu_config_t* config) {
  swiglu_config_t only = {sizeof only, index, 0, 16, 64, 128, 1, 1, 0, 0, 1, 4, 1, 0,
                          "sm_16x64_k128_s3_p4"};
  *config = only;
  return SWIGLU_OK;
}
swiglu_status_t swiglu_down_select(int64_t m, int64_t n, int64_t k, int32_t dtype, int32_t num_sms,
                                   int32_t* choice) {
  *choice = (int32_t)(m + n + k + dtype + num_sms);
  return (swiglu_status_t)answer;
}
swiglu_status_t swiglu_down_validate(swiglu_down_args_t const* args) {
  (void)args;
  return SWIGLU_OK;
}
swiglu_status_t swiglu_down_launch(swiglu_down_args_t const* args, void* stream) {
  last_down_args = *args;
  last_stream = stream;
  ++launches;
  return (swiglu_status_t)answer;
}
