// Memory that is handed to other processes. (Here the importer is this process: the descriptors go
// the same way. Two processes: tests/torch/calls/sharing_calls.py.)
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "allocator/memory/exported_identity.h"
#include "allocator/memory/exported_memory.h"
#include "tests/allocator/simulation.h"

namespace firn::test {
namespace {

constexpr const char* reason = "shared";

size_t descriptors() {
  size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder)) ++count;
  ::closedir(folder);
  return count;
}

void* make(Engine& engine, size_t bytes) {
  Result<void*> block = engine.allocate(bytes, nullptr);
  FIRN_CHECK(block, "%s", describe(block.error()).c_str());
  return *block;
}

bool pinned(Engine& engine) {
  for (const auto& each : engine.stats().pinned)
    if (each.reason == reason) return true;
  return false;
}

TEST(ExportedMemory, the_other_side_sees_the_same_bytes) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  for (const size_t bytes : {size_t{1000}, size_t{1} << 20, size_t{9} << 18, size_t{25} << 20}) {
    void* beside = make(engine, bytes);
    void* block = make(engine, bytes);
    Driver::ContextGuard context(sim.driver(), sim.context(0));
    ASSERT_TRUE(sim.fill(0, block, bytes, 7, nullptr));
    sim.synchronize();
    auto exported = engine.export_memory(static_cast<char*>(block) + bytes / 2, reason);
    ASSERT_TRUE(exported) << describe(exported.error());
    const uint64_t place = reinterpret_cast<uint64_t>(block) - (*exported)->base();
    auto imported = ImportedMemory::open(sim.driver(), 0, (*exported)->handle());
    ASSERT_TRUE(imported) << describe(imported.error());
    EXPECT_GE((*imported)->bytes(), place + bytes);
    auto* there = reinterpret_cast<char*>((*imported)->base() + place);
    EXPECT_TRUE(sim.verify(0, there, bytes, 7, nullptr));
    EXPECT_TRUE(sim.fill(0, there, bytes, 8, nullptr));
    EXPECT_TRUE(sim.verify(0, block, bytes, 8, nullptr));
    sim.synchronize();
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
    imported->reset();
    ASSERT_TRUE(engine.free(block));
    ASSERT_TRUE(engine.free(beside));
  }
  engine.check();
}

TEST(ExportedMemory, is_told_apart_from_what_was_there_before) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  void* block = make(engine, 4 << 20);
  auto first = engine.export_memory(block, reason);
  ASSERT_TRUE(first) << describe(first.error());
  const std::string before = (*first)->handle();
  EXPECT_EQ(identity_of(before), identity_of((*first)->handle()));
  first = make_error(Code::lost, 0, "let go");
  ASSERT_TRUE(engine.free(block));
  engine.trim();
  void* again = make(engine, 4 << 20);
  auto second = engine.export_memory(again, reason);
  ASSERT_TRUE(second) << describe(second.error());
  ASSERT_TRUE(identity_of(before));
  EXPECT_NE(identity_of(before), identity_of((*second)->handle()));
  EXPECT_FALSE(identity_of("no handle"));
}

TEST(ExportedMemory, an_old_handle_opens_no_other_memory) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  void* block = make(engine, 4 << 20);
  auto first = engine.export_memory(block, reason);
  ASSERT_TRUE(first) << describe(first.error());
  const std::string old = (*first)->handle();
  first = make_error(Code::lost, 0, "let go");
  ASSERT_TRUE(engine.free(block));
  engine.trim();
  void* other = make(engine, 4 << 20);
  auto second = engine.export_memory(other, reason);  // has the same numbers again
  ASSERT_TRUE(second) << describe(second.error());
  auto opened = ImportedMemory::open(sim.driver(), 0, old);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::io);
  EXPECT_NE(opened.error().text.find("has freed the memory"), std::string::npos) << opened.error().text;
  EXPECT_TRUE(ImportedMemory::open(sim.driver(), 0, (*second)->handle()));
}

TEST(ExportedMemory, is_not_handed_to_programs_that_are_started) {
  Simulation sim({});
  const auto open_files = [] {
    std::vector<int> open;
    for (int fd = 3; fd < 1024; ++fd)
      if (const int flags = ::fcntl(fd, F_GETFD); flags >= 0 && !(flags & FD_CLOEXEC))
        open.push_back(fd);
    return open;
  };
  const std::vector<int> before = open_files();
  void* block = make(sim.engine(0), 9 << 20);
  auto exported = sim.engine(0).export_memory(block, reason);
  ASSERT_TRUE(exported) << describe(exported.error());
  EXPECT_EQ(open_files(), before);
}

TEST(ExportedMemory, is_not_kept_by_a_forked_child) {
  Simulation sim({});
  const size_t before = descriptors();
  void* block = make(sim.engine(0), 9 << 20);
  auto exported = sim.engine(0).export_memory(block, reason);
  ASSERT_TRUE(exported) << describe(exported.error());
  ASSERT_GT(descriptors(), before);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(descriptors() == before ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  EXPECT_TRUE(ImportedMemory::open(sim.driver(), 0, (*exported)->handle())) << "ours is there";
}

TEST(ExportedMemory, stays_on_the_device_until_it_is_freed) {
  SimulationOptions o;
  o.watch_fraction = 0;
  Simulation sim(o);
  Engine& engine = sim.engine(0);
  const size_t bytes = 5 << 20;
  void* block = make(engine, bytes);
  ASSERT_TRUE(sim.fill(0, block, bytes, 3, nullptr));
  Result<Hold> hold = engine.touch(block, nullptr, Access::write);
  ASSERT_TRUE(hold);
  engine.release(*hold, nullptr);
  engine.spill_all();
  EXPECT_STRNE(engine.find(block)->state, "resident");
  auto exported = engine.export_memory(block, reason);
  ASSERT_TRUE(exported) << describe(exported.error());
  EXPECT_TRUE(pinned(engine));
  (void)engine.unpin(block);  // of somebody who never pinned it
  engine.spill_all();
  EXPECT_STREQ(engine.find(block)->state, "resident");
  EXPECT_TRUE(sim.verify(0, block, bytes, 3, nullptr));
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  ASSERT_TRUE(engine.free(block));
  EXPECT_FALSE(pinned(engine));
  engine.check();
}

// Whoever gets the memory next, and hands it on, hands on nothing of what the other process wrote.
TEST(ExportedMemory, is_zero_once_it_was_freed) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  CUstream other = nullptr;
  ASSERT_EQ(sim.driver().stream_create(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (const size_t bytes : {size_t{1000}, size_t{1} << 20, size_t{9} << 18, size_t{25} << 20}) {
    void* beside = make(engine, bytes);
    ASSERT_TRUE(sim.fill(0, beside, bytes, 3, nullptr));
    ASSERT_TRUE(engine.export_memory(beside, reason)) << "small ones share a segment's export";
    void* block = make(engine, bytes);
    auto exported = engine.export_memory(block, reason);
    ASSERT_TRUE(exported) << describe(exported.error());
    const uint64_t place = reinterpret_cast<uint64_t>(block) - (*exported)->base();
    auto imported = ImportedMemory::open(sim.driver(), 0, (*exported)->handle());
    ASSERT_TRUE(imported) << describe(imported.error());
    auto* there = reinterpret_cast<char*>((*imported)->base() + place);
    EXPECT_TRUE(sim.fill(0, there, bytes, 8, nullptr));
    sim.synchronize();
    // Reads under way on another stream are not overtaken.
    ASSERT_TRUE(engine.record_stream(block, other, nullptr));
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(sim.verify(0, block, bytes, 8, other));
    ASSERT_TRUE(engine.free(block));
    for (int i = 0; i < 3; ++i) {
      engine.pump();
      sim.synchronize();
      ASSERT_EQ(sim.driver().ctx_synchronize(), CUDA_SUCCESS);
    }
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
    std::string left(bytes, '\1');
    ASSERT_EQ(sim.driver().memcpy_dtoh_async(left.data(), reinterpret_cast<CUdeviceptr>(there),
                                             bytes, nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(sim.driver().ctx_synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(left.find_first_not_of('\0'), std::string::npos) << bytes;
    EXPECT_TRUE(sim.verify(0, beside, bytes, 3, nullptr)) << "a neighbour in the same frames";
    sim.synchronize();
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
    imported->reset();
    ASSERT_TRUE(engine.free(beside));
  }
  engine.check();
  ASSERT_EQ(sim.driver().stream_destroy(other), CUDA_SUCCESS);
}

TEST(ExportedMemory, is_zero_though_the_driver_refuses_once) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  const size_t bytes = 4 << 20;
  void* block = make(engine, bytes);
  auto exported = engine.export_memory(block, reason);
  ASSERT_TRUE(exported) << describe(exported.error());
  auto imported = ImportedMemory::open(sim.driver(), 0, (*exported)->handle());
  ASSERT_TRUE(imported) << describe(imported.error());
  const CUdeviceptr there =
      (*imported)->base() + (reinterpret_cast<uint64_t>(block) - (*exported)->base());
  EXPECT_TRUE(sim.fill(0, reinterpret_cast<void*>(there), bytes, 8, nullptr));
  sim.synchronize();
  sim.gpu().fail_at("cuMemsetD8Async", 1, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(engine.free(block));
  for (int i = 0; i < 3; ++i) {
    engine.pump();
    sim.synchronize();
  }
  sim.gpu().fail_at("cuMemsetD8Async", 0, 0);
  std::string left(bytes, '\1');
  ASSERT_EQ(sim.driver().memcpy_dtoh_async(left.data(), there, bytes, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(sim.driver().ctx_synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(left.find_first_not_of('\0'), std::string::npos);
}

TEST(ExportedMemory, descriptors_are_those_of_live_blocks) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  void* block = make(engine, 20 << 20);
  const size_t before = descriptors();
  std::string first;
  for (int i = 0; i < 5; ++i) {
    auto exported = engine.export_memory(block, reason);
    ASSERT_TRUE(exported);
    if (i == 0) first = (*exported)->handle();
    EXPECT_EQ((*exported)->handle(), first);  // of the same memory: it is mapped once there
  }
  EXPECT_GT(descriptors(), before);
  ASSERT_TRUE(engine.free(block));
  EXPECT_EQ(descriptors(), before);
  // Another block in the same place is other memory.
  block = make(engine, 20 << 20);
  auto again = engine.export_memory(block, reason);
  ASSERT_TRUE(again);
  EXPECT_NE((*again)->handle(), first);
}

// Whichever byte it is: a descriptor of the other export's would be other memory.
TEST(ExportedMemory, a_changed_handle_opens_nothing) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  auto first = engine.export_memory(make(engine, 4 << 20), reason);
  auto second = engine.export_memory(make(engine, 4 << 20), reason);
  ASSERT_TRUE(first && second);
  const std::string good = (*first)->handle(), other = (*second)->handle();
  ASSERT_EQ(good.size(), other.size());
  for (size_t at = 0; at < good.size(); ++at) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] + 1);
    EXPECT_FALSE(ImportedMemory::open(sim.driver(), 0, changed)) << at;
    changed[at] = other[at];
    if (changed != good) {
      EXPECT_FALSE(ImportedMemory::open(sim.driver(), 0, changed)) << at;
    }
  }
  constexpr size_t part = 16;  // a frame's descriptor and size
  const std::string mixed = good.substr(0, good.size() - part) + other.substr(other.size() - part);
  ASSERT_NE(mixed, good);
  EXPECT_FALSE(ImportedMemory::open(sim.driver(), 0, mixed));
  EXPECT_TRUE(ImportedMemory::open(sim.driver(), 0, good));
}

TEST(ExportedMemory, nonsense_is_refused) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  int outside = 0;
  EXPECT_EQ(engine.export_memory(&outside, reason).error().code, Code::invalid_argument);
  void* block = make(engine, 3 << 20);
  const std::string good = (*engine.export_memory(block, reason))->handle();
  std::string other = good;
  other[7] = '9';  // of another version
  for (const std::string& handle :
       {std::string(), std::string("e123"), good.substr(0, good.size() - 1), good + "x", other})
    EXPECT_EQ(ImportedMemory::open(sim.driver(), 0, handle).error().code, Code::invalid_argument);
  const size_t before = descriptors();
  std::string closed = good;
  const int32_t fd = 99999;
  std::memcpy(closed.data() + closed.size() - 16, &fd, sizeof fd);
  auto refused = ImportedMemory::open(sim.driver(), 0, closed);
  EXPECT_EQ(refused.error().code, Code::io);
  EXPECT_NE(refused.error().text.find("pidfd_getfd"), std::string::npos) << refused.error().text;
  EXPECT_EQ(descriptors(), before);
  ASSERT_TRUE(engine.free(block));
}

TEST(ExportedMemory, of_a_process_that_has_ended) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  Driver::ContextGuard context(sim.driver(), sim.context(0));
  void* block = make(engine, 3 << 20);
  std::string handle = (*engine.export_memory(block, reason))->handle();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  const int32_t number = child;
  std::memcpy(handle.data() + 8, &number, sizeof number);
  auto refused = ImportedMemory::open(sim.driver(), 0, handle);
  EXPECT_EQ(refused.error().code, Code::io);
  EXPECT_NE(refused.error().text.find("has ended"), std::string::npos) << refused.error().text;
  // Its number is another process's by now.
  const int32_t parent = ::getppid();
  std::memcpy(handle.data() + 8, &parent, sizeof parent);
  EXPECT_EQ(ImportedMemory::open(sim.driver(), 0, handle).error().code, Code::io);
}

}  // namespace
}  // namespace firn::test
