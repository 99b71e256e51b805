// The functions of lane.h. A connection is reading, waiting, travelling or sending; what it does next
// is decided where it changes from one to the other, and nowhere else.
#include "lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <limits>
#include <list>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

// Of a head that can be learned. A longer one is not looked for to its end.
constexpr size_t kMaxHeadBytes = 2 << 10;
// What is read of a connection before it is known what to do with it: a head, a body of 256 KiB, and a
// little of what is sent ahead.
constexpr size_t kBufferBytes = (256 << 10) + (8 << 10);
// That nobody uses, and that are kept all the same.
constexpr size_t kKeptBuffers = 64;
constexpr int kEventsAtOnce = 64;
constexpr double kNever = std::numeric_limits<double>::infinity();

double now_s(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What a head means.
struct Head {
  std::string head;
  std::string tail;
  std::string request_id;
  int64_t body_bytes;
  int64_t answer_bytes;
  int64_t tokens;
  int64_t group;
};
using HeadPtr = std::shared_ptr<Head const>;

enum class Doing { kReading, kWaiting, kTravelling, kSending };

struct Bundle;
struct Connection;
using Connections = std::list<Connection>;
using Queue = std::list<Connection*>;

struct Connection {
  int descriptor;
  Doing doing = Doing::kReading;
  // The kernel may have more to read; the client sends no more.
  bool readable = true;
  bool hung_up = false;
  // It ends with the answer.
  bool closes = false;
  // From its first byte on until it is answered: the last head, and what was read beyond the request too.
  HeadPtr head;
  std::unique_ptr<char[]> buffer;
  size_t used = 0;
  double since_s = 0.0;  // idle, or in the middle of a request, or sending
  double arrived_s = 0.0;
  std::string unsent;
  Queue::iterator place;  // while it waits
  Bundle* bundle = nullptr;  // while it travels
  size_t member = 0;
  Connections::iterator self;
};

struct Member {
  Connection* connection;  // nullptr once its client has left
  HeadPtr head;
  double arrived_s;
};

struct Bundle {
  int64_t number;
  double decode_s;  // of one request
  size_t wanted;
  std::vector<Member> members;
};

struct GivenBack {
  int descriptor;
  std::string read;
};

}  // namespace

struct lane {
  lane(lane_limits_t const& limits, lane_counts_t const& counts, char const* id_prefix, int epoll)
      : limits_(limits), counts_(counts), id_prefix_(id_prefix), epoll_(epoll) {
    state_.oldest_s = kNever;
  }

  ~lane() {
    for (auto& connection : connections_) close(connection.descriptor);
    for (auto& one : given_back_) close(one.descriptor);
    close(epoll_);
  }

  lane(lane const&) = delete;
  lane& operator=(lane const&) = delete;

  int descriptor() const { return epoll_; }
  lane_state_t const* state() const { return &state_; }

  bool learn(lane_head_t const& given) {
    auto known = std::make_shared<Head>();
    known->head.assign(given.head, given.head_bytes);
    known->tail.assign(given.tail, given.tail_bytes);
    known->request_id.assign(given.request_id, given.request_id_bytes);
    known->body_bytes = given.body_bytes;
    known->answer_bytes = given.answer_bytes;
    known->tokens = given.tokens;
    known->group = given.group;
    size_t const whole = known->head.size() + static_cast<size_t>(given.body_bytes);
    if (known->head.size() > kMaxHeadBytes || whole > kBufferBytes || given.tokens < 1 ||
        given.tokens > limits_.batch_tokens ||
        std::max(given.body_bytes, given.answer_bytes) > limits_.room_bytes) {
      return false;
    }
    if (knows(known->head)) return true;
    if (heads_.size() == static_cast<size_t>(limits_.heads)) {
      heads_.erase(head_order_.front()->head);
      head_order_.pop_front();
    }
    heads_.emplace(known->head, known);
    head_order_.push_back(std::move(known));
    return true;
  }

  bool knows(std::string const& head) const { return heads_.count(head) != 0; }

  bool adopt(int descriptor) {
    connections_.emplace_back();
    Connection& connection = connections_.back();
    connection.descriptor = descriptor;
    connection.self = std::prev(connections_.end());
    connection.since_s = now_s();
    epoll_event event{};
    // Edges: a connection whose answer is computed may send, and nobody looks.
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = &connection;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) {
      connections_.pop_back();
      return false;
    }
    ++state_.connections;
    return true;
  }

  void set_open(bool open) {
    open_ = open;
    if (open) return;
    for (auto at = connections_.begin(); at != connections_.end();) {
      Connection& connection = *at++;
      if (connection.doing == Doing::kReading) give_back(connection);
    }
  }

  void turn(int64_t gathered_tokens, int64_t gathered_bytes) {
    gathered_tokens_ = gathered_tokens;
    gathered_bytes_ = gathered_bytes;
    epoll_event events[kEventsAtOnce];
    int const count = epoll_wait(epoll_, events, kEventsAtOnce, 0);
    for (int i = 0; i < count; ++i) {
      // Each connection is there once at most, and what is done for one ends no other.
      seen(*static_cast<Connection*>(events[i].data.ptr), events[i].events);
    }
  }

  void sweep() {
    double const now = now_s();
    for (auto at = connections_.begin(); at != connections_.end();) {
      Connection& connection = *at++;
      double const for_s = now - connection.since_s;
      if (connection.doing == Doing::kReading && connection.used == 0) {
        if (for_s > limits_.keep_alive_s) end(connection);
      } else if (connection.doing == Doing::kReading) {
        if (for_s > limits_.stall_s) give_back(connection);
      } else if (connection.doing == Doing::kSending) {
        if (for_s > limits_.send_s) end(connection);
      }
    }
  }

  int64_t load(int64_t number, char* rows, lane_bundle_t* out) {
    Queue* queue = oldest_queue();
    if (queue == nullptr) return 0;
    double const began_s = now_s();
    auto bundle = std::make_unique<Bundle>();
    bundle->number = number;
    *out = {};
    out->group = queue->front()->head->group;
    out->oldest_s = queue->front()->arrived_s;
    int64_t answer_bytes = 0;
    while (!queue->empty()) {
      Connection& connection = *queue->front();
      Head const& head = *connection.head;
      if (out->tokens + head.tokens > limits_.batch_tokens ||
          out->nbytes + head.body_bytes > limits_.room_bytes ||
          answer_bytes + head.answer_bytes > limits_.room_bytes) {
        break;
      }
      unqueue(connection);
      std::memcpy(rows + out->nbytes, connection.buffer.get() + head.head.size(), head.body_bytes);
      ++out->requests;
      out->tokens += head.tokens;
      out->nbytes += head.body_bytes;
      out->waited_s += began_s - connection.arrived_s;
      answer_bytes += head.answer_bytes;
      connection.doing = Doing::kTravelling;
      connection.bundle = bundle.get();
      connection.member = bundle->members.size();
      bundle->members.push_back({&connection, connection.head, connection.arrived_s});
      drop(connection, head.head.size() + head.body_bytes);
    }
    bundle->wanted = bundle->members.size();
    bundle->decode_s = (now_s() - began_s) / static_cast<double>(out->requests);
    bundles_.emplace(number, std::move(bundle));
    refresh_oldest();
    return out->requests;
  }

  void answer(int64_t number, char const* answers, lane_answer_t const& common) {
    auto const bundle = take_bundle(number);
    for (Member& member : bundle->members) {
      char const* rows = answers;
      answers += member.head->answer_bytes;
      if (member.connection == nullptr) continue;
      double const began_s = now_s();
      double const queued_s = common.queue_s + common.sent_s - member.arrived_s;
      char timing[96];
      int const length = std::snprintf(timing, sizeof timing,
                                       "server-timing: queue;dur=%.3f, execute;dur=%.3f\r\n",
                                       queued_s * 1e3, common.execute_s * 1e3);
      text_.assign(common.first, common.first_bytes);
      add_request_id(*member.head);
      text_.append(common.second, common.second_bytes);
      text_.append(timing, std::min<size_t>(length, sizeof timing - 1));
      text_.append(member.head->tail);
      double const ended_s = now_s();
      observe_begun(bundle.get());
      // Whoever has an answer finds it counted.
      observe(counts_.encode, ended_s - began_s);
      observe(counts_.durations, ended_s - member.arrived_s);
      *counts_.ok += 1;
      *counts_.last_ok_unix_s = now_s(CLOCK_REALTIME);
      send(*member.connection, rows, member.head->answer_bytes);
    }
  }

  void dissolve(int64_t number, char const* rows, double before_s, lane_refusal_t const& refusal,
                bool keep) {
    auto const bundle = take_bundle(number);
    for (Member& member : bundle->members) {
      char const* body = rows;
      rows += member.head->body_bytes;
      if (member.connection == nullptr) continue;
      if (member.arrived_s < before_s) {
        observe_begun(bundle.get());
        refuse(*member.connection, *member.head, refusal);
        continue;
      }
      Connection& connection = *member.connection;
      std::string read = member.head->head;
      read.append(body, member.head->body_bytes);
      read.append(connection.buffer.get(), connection.used);
      if (keep) {
        wait_again(connection, read);
      } else {
        --state_.requests;
        give_back(connection, std::move(read));
      }
    }
    refresh_oldest();
  }

  void refuse_waiting(double before_s, lane_refusal_t const& refusal) {
    // Behind one that is refused another may come, of any group.
    for (Queue* queue; (queue = oldest_queue()) && queue->front()->arrived_s < before_s;) {
      Connection& connection = *queue->front();
      unqueue(connection);
      HeadPtr const head = connection.head;
      drop(connection, head->head.size() + head->body_bytes);
      observe_begun(nullptr);
      refuse(connection, *head, refusal);
    }
    refresh_oldest();
  }

  bool take_back(lane_given_back_t* found) {
    if (given_back_.empty()) return false;
    auto& [descriptor, read] = given_back_.front();
    taken_back_ = std::move(read);
    *found = {descriptor, taken_back_.data(), static_cast<int64_t>(taken_back_.size())};
    given_back_.pop_front();
    state_.given_back = given_back_.size();
    return true;
  }

  int64_t take_unwanted() {
    if (unwanted_.empty()) return 0;
    int64_t const number = unwanted_.front();
    unwanted_.pop_front();
    state_.unwanted = unwanted_.size();
    return number;
  }

 private:
  void seen(Connection& connection, uint32_t events) {
    if (events & EPOLLIN) connection.readable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) connection.hung_up = true;
    if ((events & EPOLLOUT) && connection.doing == Doing::kSending && !send_rest(connection)) return;
    if (connection.doing == Doing::kReading) {
      read(connection);
    } else if (connection.hung_up) {
      left(connection);
    }
  }

  // A request is complete, or all that there is was read. May end the connection.
  void read(Connection& connection) {
    while (connection.readable) {
      if (!connection.buffer) connection.buffer = new_buffer();
      // Never 0: what is behind a whole request is not read.
      size_t const room = kBufferBytes - connection.used;
      ssize_t const count =
          recv(connection.descriptor, connection.buffer.get() + connection.used, room, 0);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
          gone_while_reading(connection);
          return;
        }
        connection.readable = false;
        break;
      }
      if (count == 0) {
        // The client has left, in the middle of something or not.
        gone_while_reading(connection);
        return;
      }
      if (connection.used == 0) connection.since_s = now_s();
      connection.used += count;
      // The kernel tells of what comes from now on.
      connection.readable = static_cast<size_t>(count) == room;
      if (!understand(connection)) return;
    }
    if (connection.hung_up) {
      gone_while_reading(connection);
    } else if (connection.used == 0) {
      free_buffer(connection);
    }
  }

  void gone_while_reading(Connection& connection) {
    if (connection.used == 0) {
      end(connection);
    } else {
      give_back(connection);
    }
  }

  // Whether there is still more to be read; if not, a request is complete or the connection given back.
  bool understand(Connection& connection) {
    std::string_view const read(connection.buffer.get(), connection.used);
    auto const begins = [&](HeadPtr const& head) {
      return head && read.substr(0, head->head.size()) == head->head;
    };
    // Mostly as the last time.
    if (!begins(connection.head)) {
      size_t const end = read.substr(0, kMaxHeadBytes).find("\r\n\r\n");
      if (end == std::string_view::npos) {
        if (read.size() < kMaxHeadBytes) return true;
        give_back(connection);
        return false;
      }
      auto const found = heads_.find(std::string(read.substr(0, end + 4)));
      if (found == heads_.end()) {
        give_back(connection);
        return false;
      }
      connection.head = found->second;
    }
    if (read.size() < connection.head->head.size() + connection.head->body_bytes) return true;
    queue(connection);
    return false;
  }

  // A request is complete.
  void queue(Connection& connection) {
    Head const& head = *connection.head;
    if (state_.waiting_tokens + head.tokens > gathered_tokens_ ||
        state_.waiting_bytes + head.body_bytes > gathered_bytes_) {
      give_back(connection);
      return;
    }
    connection.arrived_s = now_s();
    ++state_.requests;
    enqueue(connection, waiting_[head.group].end());
    state_.oldest_s = std::min(state_.oldest_s, connection.arrived_s);
    if (connection.hung_up) left(connection);
  }

  // A request whose bundle was dissolved.
  void wait_again(Connection& connection, std::string const& read) {
    if (!connection.buffer) connection.buffer = new_buffer();
    std::memcpy(connection.buffer.get(), read.data(), read.size());
    connection.used = read.size();
    connection.bundle = nullptr;
    Queue& queue = waiting_[connection.head->group];
    enqueue(connection, std::find_if(queue.begin(), queue.end(), [&](Connection const* other) {
              return other->arrived_s > connection.arrived_s;
            }));
  }

  void enqueue(Connection& connection, Queue::iterator before) {
    Head const& head = *connection.head;
    connection.doing = Doing::kWaiting;
    connection.place = waiting_[head.group].insert(before, &connection);
    ++state_.waiting_requests;
    state_.waiting_tokens += head.tokens;
    state_.waiting_bytes += head.body_bytes;
  }

  void unqueue(Connection& connection) {
    waiting_[connection.head->group].erase(connection.place);
    --state_.waiting_requests;
    state_.waiting_tokens -= connection.head->tokens;
    state_.waiting_bytes -= connection.head->body_bytes;
  }

  Queue* oldest_queue() {
    Queue* oldest = nullptr;
    for (auto& [group, queue] : waiting_) {
      if (queue.empty()) continue;
      if (!oldest || queue.front()->arrived_s < oldest->front()->arrived_s) oldest = &queue;
    }
    return oldest;
  }

  void refresh_oldest() {
    Queue const* oldest = oldest_queue();
    state_.oldest_s = oldest ? oldest->front()->arrived_s : kNever;
  }

  // The client of a request has.
  void left(Connection& connection) {
    if (connection.doing == Doing::kSending) {
      // It has what the kernel took, and may still want the rest.
      return;
    }
    *counts_.cancelled += 1;
    observe_begun(connection.bundle);
    --state_.requests;
    if (connection.doing == Doing::kWaiting) {
      unqueue(connection);
      refresh_oldest();
    } else {
      Bundle& bundle = *connection.bundle;
      bundle.members[connection.member].connection = nullptr;
      if (--bundle.wanted == 0) {
        unwanted_.push_back(bundle.number);
        state_.unwanted = unwanted_.size();
      }
    }
    end(connection);
  }

  std::unique_ptr<Bundle> take_bundle(int64_t number) {
    auto const found = bundles_.find(number);
    auto bundle = std::move(found->second);
    bundles_.erase(found);
    return bundle;
  }

  void add_request_id(Head const& head) {
    text_.append("x-request-id: ");
    if (head.request_id.empty()) {
      char made[32];
      int const length = std::snprintf(made, sizeof made, "-%llx",
                                       static_cast<unsigned long long>(next_id_++));
      text_.append(id_prefix_).append(made, length);
    } else {
      text_.append(head.request_id);
    }
    text_.append("\r\n");
  }

  void refuse(Connection& connection, Head const& head, lane_refusal_t const& refusal) {
    *refusal.count += 1;
    text_.assign(refusal.first, refusal.first_bytes);
    add_request_id(head);
    text_.append(refusal.second, refusal.second_bytes);
    connection.closes = refusal.closes != 0;
    send(connection, nullptr, 0);
  }

  // Sends text_ and rows, as the answer to the request that the connection waits for.
  void send(Connection& connection, char const* rows, size_t nbytes) {
    --state_.requests;
    connection.bundle = nullptr;
    connection.doing = Doing::kSending;
    connection.since_s = now_s();
    iovec pieces[2] = {{text_.data(), text_.size()}, {const_cast<char*>(rows), nbytes}};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = nbytes ? 2 : 1;
    ssize_t sent;
    do {
      sent = sendmsg(connection.descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      end(connection);
      return;
    }
    size_t const done = sent < 0 ? 0 : sent;
    if (done < text_.size() + nbytes) {
      // The room is needed, so the rest is copied.
      size_t const of_text = std::min(done, text_.size());
      connection.unsent.assign(text_, of_text, std::string::npos);
      connection.unsent.append(rows + (done - of_text), nbytes - (done - of_text));
      return;
    }
    sent_all(connection);
  }

  // Whether the connection is still there.
  bool send_rest(Connection& connection) {
    while (!connection.unsent.empty()) {
      ssize_t const sent = ::send(connection.descriptor, connection.unsent.data(),
                                  connection.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
        end(connection);
        return false;
      }
      connection.unsent.erase(0, sent);
    }
    connection.unsent.shrink_to_fit();
    return sent_all(connection);
  }

  // Whether the connection is still there.
  bool sent_all(Connection& connection) {
    connection.doing = Doing::kReading;
    connection.since_s = now_s();
    if (connection.closes) {
      end(connection);
      return false;
    }
    if (!open_) {
      give_back(connection);
      return false;
    }
    // What came meanwhile.
    if (connection.used != 0 && !understand(connection)) return false;
    if (connection.readable || connection.hung_up) {
      read(connection);
      return false;
    }
    return true;
  }

  void give_back(Connection& connection) {
    give_back(connection, std::string(connection.buffer.get(), connection.used));
  }

  void give_back(Connection& connection, std::string read) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.descriptor, nullptr);
    given_back_.push_back({connection.descriptor, std::move(read)});
    state_.given_back = given_back_.size();
    forget(connection);
  }

  void end(Connection& connection) {
    // Somebody else may still have the same connection open, who handed it over.
    epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.descriptor, nullptr);
    close(connection.descriptor);
    *counts_.connections_closed += 1;
    forget(connection);
  }

  void forget(Connection& connection) {
    free_buffer(connection);
    --state_.connections;
    connections_.erase(connection.self);
  }

  // Takes the first bytes out of a connection's buffer.
  void drop(Connection& connection, size_t nbytes) {
    connection.used -= nbytes;
    if (connection.used == 0) {
      free_buffer(connection);
    } else {
      char* const data = connection.buffer.get();
      std::memmove(data, data + nbytes, connection.used);
    }
  }

  std::unique_ptr<char[]> new_buffer() {
    if (buffers_.empty()) return std::unique_ptr<char[]>(new char[kBufferBytes]);
    auto found = std::move(buffers_.back());
    buffers_.pop_back();
    return found;
  }

  void free_buffer(Connection& connection) {
    if (connection.buffer && buffers_.size() < kKeptBuffers) {
      buffers_.push_back(std::move(connection.buffer));
    }
    connection.buffer.reset();
    connection.used = 0;
  }

  // The stages up to the queue, of a request that does not go the usual way in the end.
  void observe_begun(Bundle const* bundle) const {
    observe(counts_.receive, 0.0);
    observe(counts_.decode, bundle ? bundle->decode_s : 0.0);
  }

  void observe(double* cells, double value) const {
    double const* const end = counts_.bounds + counts_.num_bounds;
    cells[std::lower_bound(counts_.bounds, end, value) - counts_.bounds] += 1;
    cells[counts_.num_bounds + 1] += value;
  }

  lane_limits_t const limits_;
  lane_counts_t const counts_;
  std::string const id_prefix_;
  int const epoll_;
  lane_state_t state_{};
  int64_t gathered_tokens_ = 0;
  int64_t gathered_bytes_ = 0;
  bool open_ = true;
  uint64_t next_id_ = 0;
  Connections connections_;
  std::unordered_map<std::string, HeadPtr> heads_;
  std::deque<HeadPtr> head_order_;
  std::unordered_map<int64_t, Queue> waiting_;
  std::unordered_map<int64_t, std::unique_ptr<Bundle>> bundles_;
  std::vector<std::unique_ptr<char[]>> buffers_;
  std::deque<GivenBack> given_back_;
  // What was read of the connection that was taken back last.
  std::string taken_back_;
  std::deque<int64_t> unwanted_;
  // Of an answer, up to its rows.
  std::string text_;
};

int32_t lane_version(void) { return LANE_VERSION; }

lane_t* lane_create(lane_limits_t const* limits, lane_counts_t const* counts, char const* id_prefix) {
  int const epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return nullptr;
  lane_t* const made = new (std::nothrow) lane(*limits, *counts, id_prefix, epoll);
  if (made == nullptr) close(epoll);
  return made;
}

void lane_destroy(lane_t* lane) { delete lane; }

int32_t lane_descriptor(lane_t const* lane) { return lane->descriptor(); }

lane_state_t const* lane_state(lane_t const* lane) { return lane->state(); }

int32_t lane_learn(lane_t* lane, lane_head_t const* head) { return lane->learn(*head) ? 0 : -1; }

int32_t lane_knows(lane_t const* lane, char const* head, int64_t head_bytes) {
  return lane->knows(std::string(head, head_bytes));
}

int32_t lane_adopt(lane_t* lane, int32_t descriptor) { return lane->adopt(descriptor) ? 0 : -1; }

void lane_set_open(lane_t* lane, int32_t open) { lane->set_open(open != 0); }

void lane_turn(lane_t* lane, int64_t gathered_tokens, int64_t gathered_bytes) {
  lane->turn(gathered_tokens, gathered_bytes);
}

void lane_sweep(lane_t* lane) { lane->sweep(); }

int64_t lane_load(lane_t* lane, int64_t number, void* rows, lane_bundle_t* bundle) {
  return lane->load(number, static_cast<char*>(rows), bundle);
}

void lane_answer(lane_t* lane, int64_t number, void const* answers, lane_answer_t const* answer) {
  lane->answer(number, static_cast<char const*>(answers), *answer);
}

void lane_dissolve(lane_t* lane, int64_t number, void const* rows, double before_s,
                   lane_refusal_t const* refusal, int32_t keep) {
  lane->dissolve(number, static_cast<char const*>(rows), before_s, *refusal, keep != 0);
}

void lane_refuse_waiting(lane_t* lane, double before_s, lane_refusal_t const* refusal) {
  lane->refuse_waiting(before_s, *refusal);
}

int32_t lane_take_back(lane_t* lane, lane_given_back_t* found) { return lane->take_back(found); }

int64_t lane_take_unwanted(lane_t* lane) { return lane->take_unwanted(); }
