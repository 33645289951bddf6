#include "allocator/runtime/metrics_output.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "allocator/record/trace.h"
#include "allocator/runtime/config.h"
#include "allocator/runtime/ranks.h"
#include "firn/output_file.h"
#include "firn/said.h"
#include "firn/signals_blocked.h"

namespace firn {

namespace {
using Steady = std::chrono::steady_clock;
constexpr auto file_period = std::chrono::seconds(10);
constexpr auto scraper_patience = std::chrono::seconds(2);  // for the whole exchange
constexpr auto silence_patience = std::chrono::milliseconds(200);
constexpr int look_ms = 1000;  // between checks that the socket is still ours
constexpr auto scrape_stop_patience = std::chrono::seconds(2);
constexpr size_t request_most = 8192;
constexpr int callers_most = 8;  // waiting for their turn

/// Milliseconds until `deadline`, for poll().
int left_ms(Steady::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

bool ready(int socket, short events, Steady::time_point deadline) {
  pollfd waits{socket, events, 0};
  int found;
  do
    found = ::poll(&waits, 1, left_ms(deadline));
  while (found < 0 && errno == EINTR);
  return found > 0;
}

/// Has the request ended, by its empty line or by its size?
bool whole(const std::string& request) {
  return request.size() >= request_most || request.find("\r\n\r\n") != std::string::npos;
}

/// Appends what comes until the deadline. False: no more will come.
bool read_request(int socket, Steady::time_point deadline, std::string& request) {
  char part[512];
  while (!whole(request) && ready(socket, POLLIN, deadline)) {
    const ssize_t got = ::recv(socket, part, sizeof part, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    request.append(part, static_cast<size_t>(got));
  }
  return true;
}

void send_all(int socket, std::string_view text, Steady::time_point deadline) {
  while (!text.empty() && ready(socket, POLLOUT, deadline)) {
    const ssize_t put = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put <= 0) return;
    text.remove_prefix(static_cast<size_t>(put));
  }
}

/// Absolute, for the program may change its folder; each rank has its own.
std::string file_of_rank(const std::string& where) {
  std::string path = expand_pid(where);
  const LocalRank who = local_rank();
  if (who.ranks > 1 && path == where) path += "." + std::to_string(who.rank);
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

std::string response(std::string_view status, std::string_view type, std::string_view body,
                     bool with_body) {
  std::string text = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n", status,
      type, body.size());
  if (status.starts_with("405")) text += "Allow: GET, HEAD\r\n";
  text += "\r\n";
  return with_body ? text.append(body) : text;
}
}  // namespace

Result<std::unique_ptr<MetricsOutput>> MetricsOutput::open(const std::string& where, Text text) {
  std::unique_ptr<MetricsOutput> made(new MetricsOutput(std::move(text)));
  const bool by_port = is_port(where);
  if (!by_port) {
    made->path_ = file_of_rank(where);
  } else {
    unsigned port = port_most + 1;  // kept if there are too many digits
    (void)std::from_chars(where.data(), where.data() + where.size(), port);
    if (Result<void> done = made->listen_at(port + local_rank().rank); !done) return done.error();
  }
  SignalsBlocked blocked;
  try {
    std::thread([output = made.get(), by_port] {
      pthread_setname_np(pthread_self(), "firn-metrics");
      if (by_port)
        output->wait_for_callers();
      else
        output->write_again();
      output->left();
    }).detach();
  } catch (const std::system_error& refused) {
    return make_error(Code::not_supported, refused.code().value(),
                      std::string("cannot start a thread: ") + refused.what());
  }
  return made;
}

Result<void> MetricsOutput::listen_at(unsigned port) {
  if (port > port_most)
    return make_error(Code::io, EINVAL, fmt::format("port {} is above 65535, the highest", port));
  Descriptor made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // A port whose last job just ended is free, but for that job's old connections.
  if (!made ||
      ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(made.get(), callers_most) != 0) {
    const int why = errno;
    return make_error(Code::io, why,
                      fmt::format("port {} of 127.0.0.1: {}", port, std::strerror(why)));
  }
  listening_ = std::move(made);
  return {};
}

void MetricsOutput::write() {
  try {
    const Result<void> done = replace_file(path_, text_(), OutputFile::Readers::all);
    if (!done && !std::exchange(told_, true))
      say("firn: firn_metrics: " + done.error().text + "; Firn tries again");
  } catch (const std::exception&) {  // e.g. no memory: tried again next time
  }
}

void MetricsOutput::write_again() {
  do {
    write();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, file_period, [this] { return stopping_.load(); });
  } while (!stopping_);
}

/// Once the program has closed our descriptor, its number may be its own socket.
void MetricsOutput::wait_for_callers() {
  while (!stopping_ && listening_.ours()) {
    // Polls first: closing the descriptor does not wake a thread in accept.
    pollfd comes{listening_.get(), POLLIN, 0};
    if (::poll(&comes, 1, look_ms) <= 0 || !listening_.ours()) continue;
    try {
      Descriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket)
        serve(socket);
      else
        ::poll(nullptr, 0, 100);  // e.g. no descriptor left: the caller waits in the queue
    } catch (const std::exception&) {  // e.g. no memory: the next one is answered
    }
  }
}

/// Serves one caller at a time; a silent one gets only a moment if others wait.
void MetricsOutput::serve(Descriptor& socket) {
  const Steady::time_point begin = Steady::now(), deadline = begin + scraper_patience;
  std::string request;
  while (!whole(request) && Steady::now() < deadline) {
    const size_t before = request.size();
    if (!read_request(socket.get(), std::min(deadline, Steady::now() + silence_patience), request))
      break;
    if (request.size() > before) continue;
    pollfd others{listening_.get(), POLLIN, 0};
    if (::poll(&others, 1, 0) > 0 || stopping_) break;
  }
  if (request.empty() || stopping_) return;
  const std::string told = answer(request, text_);
  if (!socket.ours()) return;
  send_all(socket.get(), told, deadline);
  // Unread input would have the answer thrown away.
  (void)::shutdown(socket.get(), SHUT_WR);
  char rest[512];
  while (ready(socket.get(), POLLIN, deadline) &&
         ::recv(socket.get(), rest, sizeof rest, MSG_DONTWAIT) > 0) {
  }
}

std::string MetricsOutput::answer(std::string_view request, const Text& text) {
  constexpr std::string_view plain = "text/plain; charset=utf-8";
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (request.find("\r\n\r\n") == std::string_view::npos || first == std::string_view::npos ||
      first == last || !line.substr(last + 1).starts_with("HTTP/1."))
    return response("400 Bad Request", plain, "This is not an HTTP/1 request.\n", true);
  const std::string_view method = line.substr(0, first);
  std::string_view path = line.substr(first + 1, last - first - 1);
  path = path.substr(0, path.find('?'));
  const bool with_body = method != "HEAD";
  if (with_body && method != "GET")
    return response("405 Method Not Allowed", plain, "Only GET and HEAD are supported.\n", true);
  if (path != "/metrics" && path != "/")
    return response("404 Not Found", plain, "Firn's figures are at /metrics.\n", with_body);
  return response("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text(),
                  with_body);
}

void MetricsOutput::left() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void MetricsOutput::stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_.exchange(true)) return;
    changed_.notify_all();
  }
  // Ends a wait for callers at once.
  if (path_.empty() && listening_.ours()) (void)::shutdown(listening_.get(), SHUT_RDWR);
  bool ended;
  {
    std::unique_lock lock(mutex_);
    ended = changed_.wait_for(lock, scrape_stop_patience, [this] { return ended_; });
  }
  if (ended && !path_.empty()) write();
}

}  // namespace firn
