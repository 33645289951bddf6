// A program that goes on after errors, in a machine of tags: each call is answered within a second
// of the machine's time, and after each every byte is where the engine says that it is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/faults/cases.h"
#include "tests/simulation/inspector.h"
#include "tests/simulation/machine.h"

namespace firn::faults {

inline constexpr size_t MiB = 1u << 20;

struct JobBlock {
  void* address = nullptr;
  size_t bytes = 0;
  uint32_t id = 0, version = 0;  // 0: never written
  int device = 0;
  CUstream home = nullptr, last = nullptr;
  bool large() const { return bytes >= MiB; }
};

class Job {
 public:
  explicit Job(const sim::Options& options);

  bool opened() const { return machine_->error.empty(); }
  const std::string& open_error() const { return machine_->error; }
  sim::Machine& machine() { return *machine_; }
  Engine& engine(int device = 0) { return machine_->engine(device); }
  bool dead(int device);

  /// A call of the engine's that may be answered with an error.
  template <class Call>
  auto does(const char* what, Call&& call) {
    watch(what);
    auto result = call();
    if (!result) failed(what, result.error());
    look(what);
    return result;
  }
  /// And one that answers nothing.
  template <class Call>
  void asks(const char* what, Call&& call) {
    watch(what);
    call();
    look(what);
  }

  // Null: refused. A null block is no block: nothing happens.
  JobBlock* make(size_t bytes, int device = 0, CUstream stream = nullptr);
  bool write(JobBlock* block, CUstream stream = nullptr, bool anyway = false);
  bool read(JobBlock* block, CUstream stream = nullptr, bool anyway = false);
  void drop(JobBlock* block);
  void pump(int device = 0);
  CUstream stream(int device) { return streams_[static_cast<size_t>(device)]; }

  /// Faults have ended: the engine serves again, all bytes are right, and nothing is left of what
  /// is freed.
  void recover();
  /// The engines end; `clean`: they leave nothing.
  void end(bool clean);

  unsigned errors = 0;
  std::string first_error;
  /// Called whenever an engine is about to wait.
  std::function<void()> on_wait;

 private:
  void watch(const char* what);
  void failed(const char* what, const Error& error);
  void look(const char* what);
  bool order(JobBlock& block, CUstream stream);
  bool use(JobBlock& block, CUstream stream, bool writes, bool anyway);
  void quiet(int device);

  const sim::Options options_;
  std::unique_ptr<sim::Machine> machine_;
  std::vector<CUstream> streams_;
  std::vector<std::unique_ptr<JobBlock>> blocks_;
  std::vector<CUevent> events_;  // whose end was refused
  uint32_t next_id_ = 1;
  const char* what_ = "open";
  uint64_t begin_ns_ = 0;
  uint64_t waits_ = 0;
};

}  // namespace firn::faults
