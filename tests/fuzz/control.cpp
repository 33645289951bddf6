// The control socket: a peer that sends anything, in any pieces. An input: a byte of how the
// connection ends, then pieces, each a byte of its length and so many bytes.
//
// Beyond no crash: the word that is answered is the first line, whole, and no longer than the
// longest; all other bytes are answered by the end of the connection, at once; an answer comes
// whole; afterwards the next caller is served.
#include "allocator/runtime/control.h"

#include <poll.h>
#include <sys/socket.h>

#include <chrono>

#include "allocator/runtime/control_folder.h"
#include "tests/fuzz/fuzz.h"

using namespace firn;
using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t word_most = 31;
constexpr auto patience = std::chrono::seconds(1);  // less than the socket's with a silent caller
constexpr size_t answer_bytes = 100'000;            // more than a socket holds

std::string answer_to(const std::string& word) {
  if (word == "long") return std::string(answer_bytes, 'x');
  return word.starts_with("no") ? std::string() : "<" + word + ">";
}

class Server {
 public:
  Server() {
    ::setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
    Result<std::unique_ptr<ControlSocket>> opened = ControlSocket::open(answer_to);
    FUZZ_CHECK(opened, "%s", describe(opened.error()).c_str());
    socket_ = opened->release();  // its threads may be late
  }
  ~Server() { socket_->stop(); }
  const std::string& path() const { return socket_->path(); }

 private:
  fuzz::Folder folder_;
  ControlSocket* socket_;
};

Server& server() {
  static Server made;
  return made;
}

int connected() {
  Result<int> fd = connect_control(server().path());
  // (Callers before may not have been seen off yet.)
  for (int tries = 0; !fd && tries < 1000; ++tries) {
    ::usleep(1000);
    fd = connect_control(server().path());
  }
  FUZZ_CHECK(fd, "%s", describe(fd.error()).c_str());
  return *fd;
}

/// All that comes until the connection ends, which it does in time.
std::string answer_of(int fd) {
  std::string all;
  for (const auto until = Clock::now() + patience;;) {
    pollfd ready{fd, POLLIN, 0};
    FUZZ_CHECK(Clock::now() < until, "no end after %zu bytes", all.size());
    if (::poll(&ready, 1, 100) <= 0) continue;
    char part[65536];
    const ssize_t got = ::recv(fd, part, sizeof part, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return all;  // (a reset where bytes of ours were not read)
    all.append(part, static_cast<size_t>(got));
  }
}

void ask_again() {
  // The last caller's place may be taken for a moment still.
  std::string answer;
  for (int tries = 0; answer.empty() && tries < 100; ++tries) {
    const int fd = connected();
    (void)::send(fd, "again\n", 6, MSG_NOSIGNAL);
    answer = answer_of(fd);
    ::close(fd);
  }
  FUZZ_CHECK(answer == "<again>", "the next caller got: %s", answer.c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static uint64_t runs = 0;
  (void)server();
  fuzz::Draw draw(data, size);
  const unsigned end = draw.upto(7);
  const int fd = connected();
  std::string sent;
  bool whole = true;
  while (!draw.empty()) {
    const std::string piece = draw.bytes(1 + draw.number<uint8_t>());
    if (piece.empty()) break;
    const ssize_t put = ::send(fd, piece.data(), piece.size(), MSG_NOSIGNAL);
    if (put != static_cast<ssize_t>(piece.size())) whole = false;  // answered already, and gone
    sent.append(piece);
    if (!whole) break;
  }
  if (end == 7) {  // gone before the answer
    ::close(fd);
  } else {
    (void)::shutdown(fd, SHUT_WR);
    const std::string answer = answer_of(fd);
    ::close(fd);
    const size_t line = sent.find('\n');
    const bool word = line != std::string::npos && line > 0 && line <= word_most;
    const std::string expected = word ? answer_to(sent.substr(0, line)) : std::string();
    // What was not read when the connection ends resets it, and may take the answer along.
    const bool all_read = word && line + 1 == sent.size() && whole;
    FUZZ_CHECK(answer == expected || (!all_read && expected.starts_with(answer)),
               "%zu bytes of answer in place of %zu", answer.size(), expected.size());
  }
  if (end == 7 || ++runs % 64 == 0) ask_again();
  return 0;
}
