#include "allocator/runtime/control.h"

#include <pthread.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include "allocator/runtime/control_folder.h"
#include "firn/signals_blocked.h"

namespace firn {

namespace {
constexpr size_t word_most = 32;
constexpr timeval caller_patience{2, 0};  // for a caller to send its word, and to take the answer
constexpr auto stop_patience = std::chrono::seconds(2);

std::string read_word(int socket) {
  std::string word;
  for (char letter = 0; word.size() < word_most;) {
    const ssize_t got = ::recv(socket, &letter, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};
    if (letter == '\n') return word;
    word += letter;
  }
  return {};
}

void send_all(int socket, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t put = ::send(socket, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;
    at += static_cast<size_t>(put);
  }
}

/// Removes dead processes' sockets. A process unknown here may live in another container.
void tidy(const std::string& folder) {
  for (const pid_t process : control_sockets(folder)) {
    if (::kill(process, 0) == 0 || errno != ESRCH) continue;
    if (Result<int> alive = connect_control(control_path(folder, process))) ::close(*alive);
  }
}
}  // namespace

Result<std::unique_ptr<ControlSocket>> ControlSocket::open(Answer answer) {
  std::unique_ptr<ControlSocket> made(new ControlSocket(std::move(answer)));
  Result<void> done = make_error(Code::not_supported, 0, "no folder for the control socket");
  for (const std::string& folder : control_folders()) {
    done = make_control_folder(folder);
    if (done) done = made->listen_in(folder);
    if (done) break;
  }
  if (!done) return done.error();
  SignalsBlocked blocked;
  try {
    made->threads_ = 1;
    std::thread([socket = made.get()] { socket->wait_for_callers(); }).detach();
  } catch (const std::system_error& error) {
    (void)::unlink(made->path_.c_str());
    return make_error(Code::not_supported, error.code().value(), error.what());
  }
  return made;
}

/// Publishes the name last: if it is there, its socket accepts, or its process is dead.
Result<void> ControlSocket::listen_in(const std::string& folder) {
  tidy(folder);
  const std::string path = control_path(folder, ::getpid());
  const std::string part = path + ".part";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (part.size() >= sizeof address.sun_path)
    return make_error(Code::io, ENAMETOOLONG, part + ": the path is too long for a socket");
  std::memcpy(address.sun_path, part.data(), part.size());
  Descriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int fd = made.get();
  if (fd < 0) return make_error(Code::io, errno, "socket");
  (void)::unlink(part.c_str());  // left by a dead process with our number
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(part.c_str(), 0600) != 0 || ::listen(fd, static_cast<int>(callers_most)) != 0 ||
      ::rename(part.c_str(), path.c_str()) != 0) {
    const int why = errno;
    (void)::unlink(part.c_str());
    return make_error(Code::io, why, fmt::format("{}: {}", path, std::strerror(why)));
  }
  listening_ = std::move(made);
  path_ = path;
  return {};
}

/// Once the program has closed our descriptor, its number may be a socket of the program's own: no
/// caller is taken from that.
void ControlSocket::wait_for_callers() {
  pthread_setname_np(pthread_self(), "firn-control");
  while (!stopping_ && listening_.ours()) {
    Descriptor socket;
    try {
      socket = Descriptor(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    } catch (const std::bad_alloc&) {  // its descriptor is closed: this caller gets no answer
      continue;
    }
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (stopping_ || (errno != EMFILE && errno != ENFILE && errno != ENOMEM)) break;
      ::poll(nullptr, 0, 100);  // no descriptor is left just now: the caller waits in the queue
      continue;
    }
    const int number = socket.get();
    size_t caller = 0;
    {
      std::lock_guard lock(mutex_);
      while (caller < callers_most && serving_[caller]) ++caller;
      if (caller == callers_most) continue;  // closed here
      callers_[caller] = std::move(socket);
      serving_[caller] = true;
      ++threads_;
    }
    try {
      std::thread([this, caller, number] { serve(caller, number); }).detach();
    } catch (const std::exception&) {  // a limit on processes, or no memory
      serve(caller, number);
    }
  }
  std::lock_guard lock(mutex_);
  --threads_;
  left_.notify_all();
}

void ControlSocket::serve(size_t caller, int socket) {
  (void)::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &caller_patience, sizeof caller_patience);
  (void)::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &caller_patience, sizeof caller_patience);
  if (same_user(socket)) {
    try {
      const std::string word = read_word(socket);
      if (!word.empty() && !stopping_) {
        const std::string answer = answer_(word);
        if (callers_[caller].ours()) send_all(socket, answer);
      }
    } catch (const std::exception& error) {  // e.g. no memory: the program goes on
      std::fprintf(stderr, "firn: could not answer a viewer such as firn top: %s\n", error.what());
    }
  }
  std::lock_guard lock(mutex_);
  callers_[caller] = Descriptor();
  serving_[caller] = false;
  --threads_;
  left_.notify_all();
}

void ControlSocket::stop() {
  if (stopping_.exchange(true)) return;
  (void)::unlink(path_.c_str());
  const unsigned asleep = listening_.ours() ? 0 : 1;  // stuck in accept
  if (!asleep) (void)::shutdown(listening_.get(), SHUT_RDWR);  // wakes its thread
  std::unique_lock lock(mutex_);
  for (const Descriptor& caller : callers_)  // callers that sent no word are not waited for
    if (caller.ours()) (void)::shutdown(caller.get(), SHUT_RD);
  left_.wait_for(lock, stop_patience, [&] { return threads_ <= asleep; });
}

}  // namespace firn
