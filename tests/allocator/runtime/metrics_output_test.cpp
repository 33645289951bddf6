// Figures for monitoring: the file is whole at any time and right at the end; the port answers as a
// web server does, and whoever says nothing to it keeps nobody waiting for long.
#include "allocator/runtime/metrics_output.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/temp_dir.h"

namespace firn {
namespace {

std::string answer(const std::string& request) {
  return MetricsOutput::answer(request, [] { return std::string("firn_x 1\n# EOF\n"); });
}

TEST(MetricsAnswer, figures_are_at_metrics) {
  for (const char* request : {"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.0\r\n\r\n",
                              "GET /metrics?name[]=firn_x HTTP/1.1\r\n\r\n"}) {
    const std::string told = answer(request);
    EXPECT_TRUE(told.starts_with("HTTP/1.1 200 OK\r\n")) << told;
    EXPECT_NE(told.find("Content-Type: application/openmetrics-text; version=1.0.0"),
              std::string::npos);
    EXPECT_NE(told.find("Content-Length: 15\r\n"), std::string::npos) << told;
    EXPECT_TRUE(told.ends_with("\r\n\r\nfirn_x 1\n# EOF\n")) << told;
  }
}

TEST(MetricsAnswer, a_head_has_no_body) {
  const std::string told = answer("HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_NE(told.find("Content-Length: 15\r\n"), std::string::npos) << told;
  EXPECT_TRUE(told.ends_with("\r\n\r\n")) << told;
}

TEST(MetricsAnswer, everything_else_is_refused_in_words) {
  const std::pair<const char*, const char*> table[] = {
      {"GET /etc/passwd HTTP/1.1\r\n\r\n", "404"},
      {"GET /metricsx HTTP/1.1\r\n\r\n", "404"},
      {"POST /metrics HTTP/1.1\r\n\r\n", "405"},
      {"get /metrics HTTP/1.1\r\n\r\n", "405"},
      {"GET /metrics\r\n\r\n", "400"},
      {"GET HTTP/1.1\r\n\r\n", "400"},
      {"GET /metrics HTTP/2.0\r\n\r\n", "400"},
      {"GET /metrics HTTP/1.1\r\n", "400"},
      {"\r\n\r\n", "400"},
      {"\x16\x03\x01\x02", "400"},
      {"", "400"}};
  for (const auto& [request, status] : table) {
    const std::string told = answer(request);
    EXPECT_TRUE(told.starts_with(std::string("HTTP/1.1 ") + status)) << request << told;
    EXPECT_EQ(told.find("firn_x"), std::string::npos);
  }
}

struct Caller {
  explicit Caller(unsigned port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Caller() { ::close(socket); }
  void say(std::string_view text) const {
    EXPECT_EQ(::send(socket, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }
  std::string hear() const {
    std::string all;
    char part[4096];
    for (ssize_t got; (got = ::recv(socket, part, sizeof part, 0)) > 0;)
      all.append(part, static_cast<size_t>(got));
    return all;
  }
  int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  bool connected = false;
};

/// An output is never deleted (its thread may be late), and is found from here: no leak.
MetricsOutput* lasting(std::unique_ptr<MetricsOutput> output) {
  static auto* const all = new std::vector<MetricsOutput*>;
  all->push_back(output.release());
  return all->back();
}

/// A port that was free a moment ago, and its output.
std::pair<unsigned, MetricsOutput*> open_port(MetricsOutput::Text text) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int probe = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::bind(probe, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size), 0);
    ::close(probe);
    const unsigned port = ntohs(address.sin_port);
    if (auto output = MetricsOutput::open(std::to_string(port), text))
      return {port, lasting(std::move(*output))};
  }
  ADD_FAILURE() << "no port is free";
  return {0, nullptr};
}

TEST(MetricsPort, answers_each_caller_until_it_is_stopped) {
  std::atomic<int> asked{0};
  const auto [port, output] = open_port([&] {
    if (++asked == 2) throw std::runtime_error("no memory");
    return "firn_x " + std::to_string(asked) + "\n";
  });
  for (int i = 1; i <= 4; ++i) {
    Caller caller(port);
    ASSERT_TRUE(caller.connected);
    caller.say("GET /metr");
    caller.say("ics HTTP/1.1\r\n\r\n");
    const std::string told = caller.hear();
    if (i == 2)
      EXPECT_EQ(told, "") << "what threw";
    else
      EXPECT_TRUE(told.ends_with("firn_x " + std::to_string(i) + "\n")) << told;
  }
  output->stop();
  EXPECT_FALSE(Caller(port).connected);
}

TEST(MetricsPort, one_who_says_nothing_keeps_others_waiting_for_seconds_only) {
  const auto [port, output] = open_port([] { return std::string("firn_x 1\n"); });
  const Caller silent(port), next(port);
  next.say("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(next.hear().ends_with("firn_x 1\n"));
  EXPECT_EQ(silent.hear(), "");
  output->stop();
}

TEST(MetricsPort, one_in_use_is_an_error_that_names_it) {
  const auto [port, output] = open_port([] { return std::string(); });
  auto second = MetricsOutput::open(std::to_string(port), [] { return std::string(); });
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().text.find("port " + std::to_string(port)), std::string::npos)
      << second.error().text;
  output->stop();
}

TEST(MetricsPort, ranks_have_ports_of_their_own) {
  const auto [port, output] = open_port([] { return std::string("firn_x 0\n"); });
  ::setenv("LOCAL_RANK", "1", 1);
  ::setenv("LOCAL_WORLD_SIZE", "2", 1);
  auto second = MetricsOutput::open(std::to_string(port), [] { return std::string("firn_x 1\n"); });
  ::unsetenv("LOCAL_RANK");
  ::unsetenv("LOCAL_WORLD_SIZE");
  if (second) {  // (The next port may be another program's.)
    Caller caller(port + 1);
    caller.say("GET /metrics HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(caller.hear().ends_with("firn_x 1\n"));
    lasting(std::move(*second))->stop();
  } else {
    EXPECT_NE(second.error().text.find("port " + std::to_string(port + 1)), std::string::npos);
  }
  output->stop();
}

std::string read(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(MetricsPort, silent_ones_do_not_hold_up_who_speaks) {
  const auto [port, output] = open_port([] { return std::string("firn_x 1\n"); });
  std::vector<std::unique_ptr<Caller>> silent;
  for (int i = 0; i < 6; ++i) silent.push_back(std::make_unique<Caller>(port));
  const Caller next(port);
  const auto begin = std::chrono::steady_clock::now();
  next.say("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(next.hear().ends_with("firn_x 1\n"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(6)) << "2 s for each";
  output->stop();
}

TEST(MetricsPort, a_body_that_nobody_reads_loses_no_answer) {
  const auto [port, output] = open_port([] { return std::string("firn_x 1\n"); });
  for (int i = 0; i < 20; ++i) {
    const Caller caller(port);
    caller.say("POST /metrics HTTP/1.1\r\n\r\n" + std::string(100'000, 'x'));
    (void)::shutdown(caller.socket, SHUT_WR);
    EXPECT_TRUE(caller.hear().starts_with("HTTP/1.1 405"));
  }
  output->stop();
}

TEST(MetricsFile, ranks_have_files_of_their_own) {
  const test::TempDir folder;
  const std::string path = folder.path() + "/m.prom";
  std::vector<MetricsOutput*> outputs;
  for (const char* rank : {"0", "1"}) {
    ::setenv("LOCAL_RANK", rank, 1);
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    auto output = MetricsOutput::open(path, [rank] { return std::string("rank ") + rank; });
    ASSERT_TRUE(output);
    outputs.push_back(lasting(std::move(*output)));
  }
  ::unsetenv("LOCAL_RANK");
  ::unsetenv("LOCAL_WORLD_SIZE");
  for (MetricsOutput* output : outputs) output->stop();
  EXPECT_EQ(read(path + ".0"), "rank 0");
  EXPECT_EQ(read(path + ".1"), "rank 1");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(MetricsFile, is_written_at_once_and_a_last_time) {
  const mode_t before = ::umask(022);
  const test::TempDir folder;
  std::atomic<int> asked{0};
  auto output = MetricsOutput::open(folder.path() + "/m-%p.prom",
                                    [&] { return "firn_x " + std::to_string(++asked) + "\n"; });
  ASSERT_TRUE(output);
  MetricsOutput* raw = lasting(std::move(*output));
  const std::filesystem::path path =
      folder.path() + "/m-" + std::to_string(::getpid()) + ".prom";
  while (!std::filesystem::exists(path)) std::this_thread::yield();
  EXPECT_EQ(read(path), "firn_x 1\n");
  struct stat found {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0644u) << "others read it: monitoring";
  raw->stop();
  EXPECT_EQ(read(path), "firn_x " + std::to_string(asked) + "\n");
  EXPECT_EQ(asked, 2);
  ::umask(before);
}

}  // namespace
}  // namespace firn
