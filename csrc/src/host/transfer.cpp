// The functions of transfer.h: which bytes are copied from where they are, and which by way of
// pieces.
#include "swiglu/transfer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "copies.hpp"
#include "guarded.hpp"
#include "host/spans.hpp"

struct swiglu_staging {
  std::byte* pinned = nullptr;
  int64_t piece_bytes = 0;
  std::vector<void*> events;  // one for each piece, recorded behind its last copy

  std::byte* piece(size_t index) const {
    return pinned + static_cast<int64_t>(index % events.size()) * piece_bytes;
  }
  void* event(size_t index) const { return events[index % events.size()]; }

  ~swiglu_staging() {
    for (void* event : events) swiglu::destroy_event(event);
  }
};

namespace swiglu {

Error check_spans(swiglu_span_t const* spans, int64_t count) {
  if (spans == nullptr) return null_argument("spans");
  if (count < 1) {
    return {SWIGLU_INVALID_SHAPE, "count: must be 1 or more, is " + std::to_string(count)};
  }
  for (int64_t i = 0; i < count; ++i) {
    if (spans[i].host == nullptr) return null_argument("host of a span");
    if (spans[i].bytes < 1) {
      return {SWIGLU_INVALID_SHAPE,
              "bytes of a span: must be 1 or more, is " + std::to_string(spans[i].bytes)};
    }
  }
  return {};
}

namespace {

using Clock = std::chrono::steady_clock;

std::atomic_flag enqueuing = ATOMIC_FLAG_INIT;

void take_turn() {
  // Whoever enqueues is soon done, unless it lost its processor: then it gets ours.
  for (int tries = 1; enqueuing.test_and_set(std::memory_order_acquire); ++tries) {
    if (tries % 1024 == 0) std::this_thread::yield();
  }
}

void give_turn() { enqueuing.clear(std::memory_order_release); }

struct Turn {
  Turn() { take_turn(); }
  ~Turn() { give_turn(); }
  Turn(Turn const&) = delete;
  Turn& operator=(Turn const&) = delete;
};

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

// Consecutive device bytes, at most a piece, and where on the host they are.
struct Block {
  int64_t at;      // offset on the device
  int64_t bytes;
  int64_t span;    // the first of the spans that it covers
  int64_t offset;  // in that span
};

bool goes_direct(swiglu_span_t const& span) {
  return span.bytes >= SWIGLU_DIRECT_BYTES && is_page_locked(span.host);
}

// The spans from the first on that lie one behind the other, as one; `next` becomes the one after.
swiglu_span_t join(swiglu_span_t const* spans, int64_t first, int64_t count, int64_t* next) {
  swiglu_span_t joined = spans[first];
  int64_t i = first + 1;
  for (; i < count && static_cast<std::byte*>(joined.host) + joined.bytes == spans[i].host; ++i) {
    joined.bytes += spans[i].bytes;
  }
  *next = i;
  return joined;
}

// Adds a span, which goes to `at` on the device, to the last block if that is open, and to new
// ones. True, since the last one may grow now.
bool append(swiglu_span_t const& span, int64_t index, int64_t at, int64_t piece_bytes, bool open,
            std::vector<Block>* blocks) {
  for (int64_t done = 0; done < span.bytes;) {
    if (!open || blocks->back().bytes == piece_bytes) {
      blocks->push_back({at + done, 0, index, done});
      open = true;
    }
    Block& last = blocks->back();
    int64_t const bytes = std::min(piece_bytes - last.bytes, span.bytes - done);
    last.bytes += bytes;
    done += bytes;
  }
  return open;
}

// Calls direct(span, offset on the device) for what is copied from where it is, and returns the
// rest.
template <class Direct>
Error divide(swiglu_span_t const* spans, int64_t count, int64_t piece_bytes,
             std::vector<Block>* blocks, Direct&& direct) {
  int64_t at = 0;
  bool open = false;  // whether the last block may grow
  for (int64_t i = 0, next = 0; i < count; i = next) {
    swiglu_span_t const joined = join(spans, i, count, &next);
    if (goes_direct(joined)) {
      if (Error error = direct(joined, at)) return error;
      open = false;
    } else {
      for (int64_t span = i, start = at; span < next; start += spans[span++].bytes) {
        open = append(spans[span], span, start, piece_bytes, open, blocks);
      }
    }
    at += joined.bytes;
  }
  return {};
}

// Calls copy(address in a span, offset in the block, bytes) for each part of a block.
template <class Copy>
void for_each_part(swiglu_span_t const* spans, Block const& block, Copy&& copy) {
  int64_t span = block.span;
  int64_t offset = block.offset;
  for (int64_t done = 0; done < block.bytes; ++span, offset = 0) {
    int64_t const bytes = std::min(spans[span].bytes - offset, block.bytes - done);
    copy(static_cast<std::byte*>(spans[span].host) + offset, done, static_cast<size_t>(bytes));
    done += bytes;
  }
}

// Copies what goes direct, behind the event `begin`, and finds the rest; in one turn.
Error send_direct(swiglu_span_t const* spans, int64_t count, std::byte* target, void* stream,
                  void* begin, int64_t piece_bytes, std::vector<Block>* blocks) {
  Turn const turn;
  if (Error error = record_event(begin, stream)) return error;
  return divide(spans, count, piece_bytes, blocks, [&](swiglu_span_t const& span, int64_t at) {
    return copy_to_device(target + at, span.host, span.bytes, stream);
  });
}

Error send(swiglu_staging_t& staging, swiglu_span_t const* spans, int64_t count, void* device,
           void* stream, void* begin, void* arrived) {
  auto* const target = static_cast<std::byte*>(device);
  std::vector<Block> blocks;
  if (Error error =
          send_direct(spans, count, target, stream, begin, staging.piece_bytes, &blocks)) {
    return error;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (Error error = wait_for_event(staging.event(i))) return error;
    std::byte* const piece = staging.piece(i);
    for_each_part(spans, blocks[i], [&](std::byte const* host, int64_t at, size_t bytes) {
      std::memcpy(piece + at, host, bytes);
    });
    Turn const turn;
    if (Error error = copy_to_device(target + blocks[i].at, piece, blocks[i].bytes, stream)) {
      return error;
    }
    if (Error error = record_event(staging.event(i), stream)) return error;
  }
  Turn const turn;
  return record_event(arrived, stream);
}

// Copies what goes direct, behind the event `after`, and finds the rest; in one turn.
Error receive_direct(swiglu_span_t const* spans, int64_t count, std::byte const* source,
                     void* stream, void* after, int64_t piece_bytes, std::vector<Block>* blocks) {
  Turn const turn;
  if (Error error = stream_waits_for(stream, after)) return error;
  return divide(spans, count, piece_bytes, blocks, [&](swiglu_span_t const& span, int64_t at) {
    return copy_to_host(span.host, source + at, span.bytes, stream);
  });
}

Error receive(swiglu_staging_t& staging, void const* device, swiglu_span_t const* spans,
              int64_t count, void* stream, void* after, void* end, double* host_s) {
  auto const* const source = static_cast<std::byte const*>(device);
  std::vector<Block> blocks;
  if (Error error =
          receive_direct(spans, count, source, stream, after, staging.piece_bytes, &blocks)) {
    return error;
  }
  auto fetch = [&](size_t i) -> Error {
    Block const& block = blocks[i];
    Turn const turn;
    if (Error error = copy_to_host(staging.piece(i), source + block.at, block.bytes, stream)) {
      return error;
    }
    if (Error error = record_event(staging.event(i), stream)) return error;
    return i + 1 == blocks.size() ? record_event(end, stream) : Error{};
  };
  if (blocks.empty()) {
    Turn const turn;
    if (Error error = record_event(end, stream)) return error;
  }
  size_t const ahead = staging.events.size();
  for (size_t i = 0; i < std::min(ahead, blocks.size()); ++i) {
    if (Error error = fetch(i)) return error;
  }
  Clock::time_point arrived{};
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (Error error = wait_for_event(staging.event(i))) return error;
    arrived = Clock::now();
    std::byte const* const piece = staging.piece(i);
    for_each_part(spans, blocks[i], [&](std::byte* host, int64_t at, size_t bytes) {
      std::memcpy(host, piece + at, bytes);
    });
    if (i + ahead < blocks.size()) {
      if (Error error = fetch(i + ahead)) return error;
    }
  }
  // The driver waits awake. Short naps between looks, tried on a virtual machine, took more of the
  // processors than that and made batches later.
  if (Error error = wait_for_event(end)) return error;
  *host_s = blocks.empty() ? 0.0 : seconds_since(arrived);
  return {};
}

Error launch(swiglu_trip_t const& trip) {
  Turn const turn;
  if (Error error = stream_waits_for(trip.compute, trip.arrived)) return error;
  if (Error error = launch_graph(trip.graph, trip.compute)) return error;
  return record_event(trip.done, trip.compute);
}

Error create(void* pinned, int64_t piece_bytes, int32_t count, swiglu_staging_t** staging) {
  if (pinned == nullptr) return null_argument("pinned");
  if (staging == nullptr) return null_argument("staging");
  if (piece_bytes < 1 || count < 1) {
    return {SWIGLU_INVALID_SHAPE, "piece_bytes, count: must be 1 or more, are " +
                                      std::to_string(piece_bytes) + " and " +
                                      std::to_string(count)};
  }
  auto made = std::make_unique<swiglu_staging>();
  made->pinned = static_cast<std::byte*>(pinned);
  made->piece_bytes = piece_bytes;
  for (int32_t i = 0; i < count; ++i) {
    void* event = nullptr;
    if (Error error = create_event(&event)) return error;
    made->events.push_back(event);
  }
  *staging = made.release();
  return {};
}

Error check_trip(swiglu_trip_t const* trip) {
  if (trip == nullptr) return null_argument("trip");
  if (trip->upload == nullptr) return null_argument("upload");
  if (trip->download == nullptr) return null_argument("download");
  if (trip->graph == nullptr) return null_argument("graph");
  return {};
}

// Of a trip whose graph holds the copies.
Error check_whole(swiglu_trip_t const* trip) {
  if (Error error = check_trip(trip)) return error;
  if (trip->x != nullptr) return {SWIGLU_INVALID_ARGUMENT, "x: must be NULL, is a pointer"};
  return {};
}

// That the spans fit a piece.
Error check_fit(swiglu_staging_t const& staging, swiglu_span_t const* spans, int64_t count) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) bytes += spans[i].bytes;
  if (bytes > staging.piece_bytes) {
    return {SWIGLU_INVALID_SHAPE, "spans: must have at most " +
                                      std::to_string(staging.piece_bytes) + " bytes, have " +
                                      std::to_string(bytes)};
  }
  return {};
}

Error begin_trip(swiglu_trip_t const& trip, swiglu_span_t const* inputs, int64_t num_inputs) {
  if (Error error = check_fit(*trip.upload, inputs, num_inputs)) return error;
  std::byte* next = trip.upload->piece(0);
  for (int64_t i = 0; i < num_inputs; next += inputs[i++].bytes) {
    std::memcpy(next, inputs[i].host, static_cast<size_t>(inputs[i].bytes));
  }
  Turn const turn;
  if (Error error = launch_graph(trip.graph, trip.compute)) return error;
  return record_event(trip.end, trip.compute);
}

Error end_trip(swiglu_trip_t const& trip, swiglu_span_t const* outputs, int64_t num_outputs,
               double* host_s) {
  if (Error error = check_fit(*trip.download, outputs, num_outputs)) return error;
  if (Error error = wait_for_event(trip.end)) return error;
  auto const passed = Clock::now();
  std::byte const* next = trip.download->piece(0);
  for (int64_t i = 0; i < num_outputs; next += outputs[i++].bytes) {
    std::memcpy(outputs[i].host, next, static_cast<size_t>(outputs[i].bytes));
  }
  *host_s = seconds_since(passed);
  return {};
}

Error run_trip(swiglu_trip_t const& trip, swiglu_span_t const* inputs, int64_t num_inputs,
               swiglu_span_t const* outputs, int64_t num_outputs, double* host_s) {
  // Before anything is enqueued.
  if (Error error = check_spans(inputs, num_inputs)) return error;
  if (Error error = check_spans(outputs, num_outputs)) return error;
  if (trip.x == nullptr) {
    if (Error error = check_fit(*trip.download, outputs, num_outputs)) return error;
    if (Error error = begin_trip(trip, inputs, num_inputs)) return error;
    return end_trip(trip, outputs, num_outputs, host_s);
  }
  if (Error error = send(*trip.upload, inputs, num_inputs, trip.x, trip.h2d, trip.begin,
                         trip.arrived)) {
    return error;
  }
  if (Error error = launch(trip)) return error;
  return receive(*trip.download, trip.answers, outputs, num_outputs, trip.d2h, trip.done, trip.end,
                 host_s);
}

}  // namespace
}  // namespace swiglu

extern "C" {

swiglu_status_t swiglu_staging_create(void* pinned, int64_t piece_bytes, int32_t count,
                                      swiglu_staging_t** staging) {
  return swiglu::guarded([&] { return swiglu::create(pinned, piece_bytes, count, staging); });
}

void swiglu_staging_destroy(swiglu_staging_t* staging) { delete staging; }

void swiglu_take_turn(void) { swiglu::take_turn(); }

void swiglu_give_turn(void) { swiglu::give_turn(); }

swiglu_status_t swiglu_send(swiglu_staging_t* staging, swiglu_span_t const* spans, int64_t count,
                            void* device, void* stream, void* begin, void* arrived) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (staging == nullptr) return swiglu::null_argument("staging");
    if (swiglu::Error error = swiglu::check_spans(spans, count)) return error;
    return swiglu::send(*staging, spans, count, device, stream, begin, arrived);
  });
}

swiglu_status_t swiglu_receive(swiglu_staging_t* staging, void const* device,
                               swiglu_span_t const* spans, int64_t count, void* stream, void* after,
                               void* end, double* host_s) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (staging == nullptr) return swiglu::null_argument("staging");
    if (swiglu::Error error = swiglu::check_spans(spans, count)) return error;
    return swiglu::receive(*staging, device, spans, count, stream, after, end, host_s);
  });
}

swiglu_status_t swiglu_graph_create(void* captured, void* stream, void** graph) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (captured == nullptr) return swiglu::null_argument("captured");
    if (graph == nullptr) return swiglu::null_argument("graph");
    return swiglu::make_graph(captured, stream, graph);
  });
}

void swiglu_graph_destroy(void* graph) {
  if (graph != nullptr) swiglu::destroy_graph(graph);
}

swiglu_status_t swiglu_run_trip(swiglu_trip_t const* trip, swiglu_span_t const* inputs,
                                int64_t num_inputs, swiglu_span_t const* outputs,
                                int64_t num_outputs, double* host_s) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (swiglu::Error error = swiglu::check_trip(trip)) return error;
    return swiglu::run_trip(*trip, inputs, num_inputs, outputs, num_outputs, host_s);
  });
}

swiglu_status_t swiglu_begin_trip(swiglu_trip_t const* trip, swiglu_span_t const* inputs,
                                  int64_t num_inputs) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (swiglu::Error error = swiglu::check_whole(trip)) return error;
    if (num_inputs != 0) {
      if (swiglu::Error error = swiglu::check_spans(inputs, num_inputs)) return error;
    }
    return swiglu::begin_trip(*trip, inputs, num_inputs);
  });
}

swiglu_status_t swiglu_end_trip(swiglu_trip_t const* trip, swiglu_span_t const* outputs,
                                int64_t num_outputs, double* host_s) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (swiglu::Error error = swiglu::check_whole(trip)) return error;
    if (swiglu::Error error = swiglu::check_spans(outputs, num_outputs)) return error;
    return swiglu::end_trip(*trip, outputs, num_outputs, host_s);
  });
}

swiglu_status_t swiglu_read_laps(swiglu_lap_t const* laps, int32_t count, double* seconds) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (laps == nullptr) return swiglu::null_argument("laps");
    if (seconds == nullptr) return swiglu::null_argument("seconds");
    for (int32_t i = 0; i < count; ++i) {
      if (swiglu::Error error = swiglu::seconds_between(laps[i].from, laps[i].to, &seconds[i])) {
        return error;
      }
    }
    return {};
  });
}

swiglu_status_t swiglu_spin(void* event, double seconds, int32_t* passed) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (passed == nullptr) return swiglu::null_argument("passed");
    auto const began = swiglu::Clock::now();
    bool over = swiglu::has_passed(event);
    while (!over && swiglu::seconds_since(began) < seconds) {
      over = swiglu::has_passed(event);
    }
    *passed = over ? 1 : 0;
    return {};
  });
}

}  // extern "C"
