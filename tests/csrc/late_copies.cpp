// A device for transfer.h that does everything as late as it may: copies happen when somebody waits
// for an event behind them. Whoever reads, fills or empties memory too early gets the wrong bytes.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>

#include "copies.hpp"

namespace {

struct Operation {
  void* target;  // null for a record, a graph's own address for its launch
  void const* source;
  int64_t bytes;
  intptr_t event;
};

// Of all that follows: a runner's threads come at the same time.
std::recursive_mutex everything;
using Lock = std::lock_guard<std::recursive_mutex>;

std::deque<Operation> pending;
intptr_t events = 0;
int64_t copies = 0;
char const* locked = nullptr;
int64_t locked_bytes = 0;
bool refuses = false;
int64_t questions = 0;
int64_t answers_yes_from = 0;
std::atomic<bool> refuses_graphs = false;
int64_t graphs_destroyed = 0;
int64_t synchronized = 0;
thread_local int32_t current = 0;
int32_t launched_on = -1;
std::atomic<bool> is_lost = false;

// What a test's captured graph is: from `x` to `answers`, which is `bytes` long, in reverse.
struct Reversal {
  char const* x;
  char* answers;
  int64_t bytes;
};

void run_first(size_t count) {
  for (; count > 0; --count, pending.pop_front()) {
    Operation const& first = pending.front();
    if (first.target != nullptr && first.source == nullptr) {
      auto const& reversal = *static_cast<Reversal const*>(first.target);
      std::reverse_copy(reversal.x, reversal.x + reversal.bytes, reversal.answers);
    } else if (first.target != nullptr) {
      std::memcpy(first.target, first.source, static_cast<size_t>(first.bytes));
    }
  }
}

void run_until(intptr_t event) {
  Lock const lock(everything);
  size_t last = 0;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].target == nullptr && pending[i].event == event) last = i + 1;
  }
  run_first(last);
}

swiglu::Error enqueue(void* target, void const* source, int64_t bytes) {
  Lock const lock(everything);
  if (refuses) return {SWIGLU_CUDA_ERROR, "cudaMemcpyAsync: CUDA error: refused"};
  ++copies;
  pending.push_back({target, source, bytes, 0});
  return {};
}

}  // namespace

namespace swiglu {

Error create_event(void** event) {
  *event = reinterpret_cast<void*>(++events);
  return {};
}
void destroy_event(void*) { --events; }
Error record_event(void* event, void*) {
  Lock const lock(everything);
  pending.push_back({nullptr, nullptr, 0, reinterpret_cast<intptr_t>(event)});
  return {};
}
Error wait_for_event(void* event) {
  run_until(reinterpret_cast<intptr_t>(event));
  return {};
}
bool has_passed(void* event) {
  Lock const lock(everything);
  if (++questions < answers_yes_from) return false;
  run_until(reinterpret_cast<intptr_t>(event));
  return true;
}
Error stream_waits_for(void*, void* event) { return wait_for_event(event); }
Error copy_to_device(void* device, void const* host, int64_t bytes, void*) {
  return enqueue(device, host, bytes);
}
Error copy_to_host(void* host, void const* device, int64_t bytes, void*) {
  return enqueue(host, device, bytes);
}
Error make_graph(void* captured, void*, void** graph) {
  *graph = captured;
  return {};
}
void destroy_graph(void*) { ++graphs_destroyed; }
// A "graph" reverses the bytes between two addresses.
Error launch_graph(void* graph, void*) {
  if (refuses_graphs) return {SWIGLU_CUDA_ERROR, "cudaGraphLaunch: CUDA error: refused"};
  Lock const lock(everything);
  launched_on = current;
  pending.push_back({graph, nullptr, 0, 0});
  return {};
}
// So many milliseconds as their numbers differ by.
Error seconds_between(void* from, void* to, double* seconds) {
  *seconds = 1e-3 * static_cast<double>(reinterpret_cast<intptr_t>(to) -
                                        reinterpret_cast<intptr_t>(from));
  return {};
}
Error get_device(int32_t* device) {
  *device = current;
  return {};
}
Error use_device(int32_t device) {
  current = device;
  return {};
}
Error synchronize_device() {
  Lock const lock(everything);
  ++synchronized;
  run_first(pending.size());
  if (is_lost) return {SWIGLU_CUDA_ERROR, "cudaDeviceSynchronize: CUDA error: lost"};
  return {};
}
bool is_page_locked(void const* host) {
  auto const* address = static_cast<char const*>(host);
  return locked != nullptr && address >= locked && address < locked + locked_bytes;
}

}  // namespace swiglu

extern "C" {

// Only this memory is page-locked from now on.
SWIGLU_API void swiglu_test_lock(void const* host, int64_t bytes) {
  locked = static_cast<char const*>(host);
  locked_bytes = bytes;
}
// From now on every copy is refused, or none.
SWIGLU_API void swiglu_test_refuse(int32_t all) { refuses = all != 0; }
// From now on every launch of a graph is refused, or none.
SWIGLU_API void swiglu_test_refuse_graphs(int32_t all) { refuses_graphs = all != 0; }
SWIGLU_API int64_t swiglu_test_graphs_destroyed(void) { return graphs_destroyed; }
// From now on whoever waits for the whole device hears that it is lost, or not.
SWIGLU_API void swiglu_test_lose(int32_t lost) { is_lost = lost != 0; }
// How often somebody has waited for the whole device.
SWIGLU_API int64_t swiglu_test_synchronized(void) { return synchronized; }
// The calling thread's current device, from now on.
SWIGLU_API void swiglu_test_device(int32_t device) { current = device; }
SWIGLU_API int32_t swiglu_test_launched_on(void) { return launched_on; }
// Copies across the bus since the last call.
SWIGLU_API int64_t swiglu_test_copies(void) {
  int64_t const made = copies;
  copies = 0;
  return made;
}
// The next so many questions whether an event has passed are answered with no.
SWIGLU_API void swiglu_test_not_yet(int64_t count) {
  questions = 0;
  answers_yes_from = count + 1;
}
// Questions since then.
SWIGLU_API int64_t swiglu_test_questions(void) { return questions; }
SWIGLU_API int64_t swiglu_test_events(void) { return events; }
SWIGLU_API void swiglu_test_wait(void* event) { run_until(reinterpret_cast<intptr_t>(event)); }

}  // extern "C"
