// The functions of runner.h: threads that take batches from one queue and put their ends into
// another, and a descriptor that says so.
#include "swiglu/runner.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copies.hpp"
#include "guarded.hpp"
#include "host/spans.hpp"

namespace swiglu {
namespace {

struct Job {
  int64_t ticket;
  swiglu_trip_t trip;
  std::vector<swiglu_span_t> inputs;
  std::vector<swiglu_span_t> outputs;
  std::vector<swiglu_lap_t> laps;
};

struct Outcome {
  swiglu_ended_t ended{};
  Error error;
};

// What the threads share with whoever starts and collects. It lives until the last of them ends.
class Shared {
 public:
  explicit Shared(int descriptor) : descriptor_(descriptor) {}
  ~Shared() { close(descriptor_); }
  Shared(Shared const&) = delete;
  Shared& operator=(Shared const&) = delete;

  int descriptor() const { return descriptor_; }

  void start(Job job) {
    {
      std::lock_guard const lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

  // Whether there is a job; none will come after false.
  bool next(Job* job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return false;
    *job = std::move(jobs_.front());
    jobs_.pop_front();
    return true;
  }

  void end(Outcome outcome) {
    // Told of within the lock, or who collects could find it before, and be woken for nothing.
    std::lock_guard const lock(mutex_);
    outcomes_.push_back(std::move(outcome));
    if (outcomes_.size() == 1) eventfd_write(descriptor_, 1);
  }

  // Whether a batch has ended; the descriptor is quiet once none has.
  bool collect(Outcome* outcome) {
    std::lock_guard const lock(mutex_);
    if (outcomes_.empty()) return false;
    *outcome = std::move(outcomes_.front());
    outcomes_.pop_front();
    if (outcomes_.empty()) {
      eventfd_t count = 0;
      eventfd_read(descriptor_, &count);
    }
    return true;
  }

  void stop() {
    {
      std::lock_guard const lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
  }

 private:
  int const descriptor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::deque<Outcome> outcomes_;
  bool stopping_ = false;
};

// The error of a call that this thread made last.
Error to_error(swiglu_status_t status) {
  if (status == SWIGLU_OK) return {};
  return {status, last_error()};
}

Error run(Job const& job, swiglu_ended_t* ended) {
  if (Error error = to_error(swiglu_run_trip(
          &job.trip, job.inputs.data(), static_cast<int64_t>(job.inputs.size()),
          job.outputs.data(), static_cast<int64_t>(job.outputs.size()), &ended->host_s))) {
    return error;
  }
  if (job.laps.empty()) return {};
  return to_error(
      swiglu_read_laps(job.laps.data(), static_cast<int32_t>(job.laps.size()), ended->laps_s));
}

void work(std::shared_ptr<Shared> const& shared, int32_t device) {
  Error const wrong_device = use_device(device);
  for (Job job; shared->next(&job);) {
    Outcome outcome;
    outcome.ended.ticket = job.ticket;
    outcome.error = wrong_device ? wrong_device : run(job, &outcome.ended);
    if (outcome.error) {
      // Or copies of this batch might still be under way.
      if (Error lost = synchronize_device()) {
        outcome.ended.lost = 1;
        outcome.error = std::move(lost);
      }
    }
    shared->end(std::move(outcome));
  }
}

}  // namespace
}  // namespace swiglu

struct swiglu_runner {
  std::shared_ptr<swiglu::Shared> const shared;

  explicit swiglu_runner(int descriptor) : shared(std::make_shared<swiglu::Shared>(descriptor)) {}
  ~swiglu_runner() { shared->stop(); }
  swiglu_runner(swiglu_runner const&) = delete;
  swiglu_runner& operator=(swiglu_runner const&) = delete;
};

namespace swiglu {
namespace {

Error create(int32_t threads, swiglu_runner_t** runner) {
  if (runner == nullptr) return null_argument("runner");
  if (threads < 1) {
    return {SWIGLU_INVALID_SHAPE, "threads: must be 1 or more, is " + std::to_string(threads)};
  }
  int32_t device = 0;
  if (Error error = get_device(&device)) return error;
  int const descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) {
    return {SWIGLU_INTERNAL, std::string("eventfd: ") + std::strerror(errno)};
  }
  auto made = std::make_unique<swiglu_runner>(descriptor);
  for (int32_t i = 0; i < threads; ++i) {
    // Not to be joined: one that waits for a device that hangs would keep its process from ending.
    std::thread([shared = made->shared, device] { work(shared, device); }).detach();
  }
  *runner = made.release();
  return {};
}

Error check_laps(swiglu_lap_t const* laps, int32_t count) {
  if (count < 0 || count > SWIGLU_MAX_LAPS) {
    return {SWIGLU_INVALID_SHAPE, "num_laps: must be 0 to " + std::to_string(SWIGLU_MAX_LAPS) +
                                      ", is " + std::to_string(count)};
  }
  return count > 0 && laps == nullptr ? null_argument("laps") : Error{};
}

}  // namespace
}  // namespace swiglu

extern "C" {

swiglu_status_t swiglu_runner_create(int32_t threads, swiglu_runner_t** runner) {
  return swiglu::guarded([&] { return swiglu::create(threads, runner); });
}

void swiglu_runner_destroy(swiglu_runner_t* runner) { delete runner; }

int32_t swiglu_runner_descriptor(swiglu_runner_t const* runner) {
  return runner == nullptr ? -1 : runner->shared->descriptor();
}

swiglu_status_t swiglu_runner_start(swiglu_runner_t* runner, int64_t ticket,
                                    swiglu_trip_t const* trip, swiglu_span_t const* inputs,
                                    int64_t num_inputs, swiglu_span_t const* outputs,
                                    int64_t num_outputs, swiglu_lap_t const* laps,
                                    int32_t num_laps) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (runner == nullptr) return swiglu::null_argument("runner");
    if (trip == nullptr) return swiglu::null_argument("trip");
    if (ticket == 0) return {SWIGLU_INVALID_ARGUMENT, "ticket: must not be 0, is"};
    if (swiglu::Error error = swiglu::check_spans(inputs, num_inputs)) return error;
    if (swiglu::Error error = swiglu::check_spans(outputs, num_outputs)) return error;
    if (swiglu::Error error = swiglu::check_laps(laps, num_laps)) return error;
    runner->shared->start({ticket,
                           *trip,
                           {inputs, inputs + num_inputs},
                           {outputs, outputs + num_outputs},
                           {laps, laps + num_laps}});
    return {};
  });
}

swiglu_status_t swiglu_runner_collect(swiglu_runner_t* runner, swiglu_ended_t* ended) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (runner == nullptr) return swiglu::null_argument("runner");
    if (ended == nullptr) return swiglu::null_argument("ended");
    swiglu::Outcome outcome;
    *ended = runner->shared->collect(&outcome) ? outcome.ended : swiglu_ended_t{};
    return outcome.error;
  });
}

}  // extern "C"
