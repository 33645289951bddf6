// What Firn believes of work in flight, on the software GPU or on the real driver: which calls wait
// for kernels, waits for values, captures that go on meanwhile, where kernels' parameters lie.
#include <atomic>
#include <functional>
#include <thread>

#include "beliefs.h"

namespace firn::beliefs {
namespace {

/// No call that Firn makes to move a block needs the kernels to be over that use other memory. (One
/// that waits for them is no error; it says where a job would stall.)
TEST_F(Belief, calls_beside_a_running_kernel) {
  const HostWords flag = host_words();
  const CUdeviceptr address = reserve(granule), block = mapped(), second = mapped();
  void* const pages = ::mmap(nullptr, granule, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr plain = 0, more = 0;
  CUevent over = nullptr, event = nullptr;
  size_t free_bytes = 0, total_bytes = 0;
  OK(driver->event_create(&over, no_timing));
  const std::pair<const char*, std::function<CUresult()>> calls[] = {
      {"mem_create", [&] { return driver->mem_create(&handle, granule, &prop, 0); }},
      {"mem_map", [&] { return driver->mem_map(address, granule, 0, handle, 0); }},
      {"mem_set_access", [&] { return driver->mem_set_access(address, granule, &access, 1); }},
      {"memset", [&] { return driver->memset_d8_async(address, 1, granule, other); }},
      {"copy_out", [&] { return driver->memcpy_dtoh_async(pages, block, granule, other); }},
      {"copy_in", [&] { return driver->memcpy_htod_async(second, pages, granule, other); }},
      {"stream_synchronize", [&] { return driver->stream_synchronize(other); }},
      {"mem_unmap", [&] { return driver->mem_unmap(address, granule); }},
      {"mem_release", [&] { return driver->mem_release(handle); }},
      {"host_register",
       [&] { return driver->mem_host_register(pages, granule, CU_MEMHOSTREGISTER_PORTABLE); }},
      {"registered_copy_out",
       [&] { return driver->memcpy_dtoh_async(pages, block, granule, other); }},
      {"registered_copy_over", [&] { return driver->stream_synchronize(other); }},
      {"host_unregister", [&] { return driver->mem_host_unregister(pages); }},
      {"address_reserve", [&] { return driver->mem_address_reserve(&more, granule, 0, 0, 0); }},
      {"address_free", [&] { return driver->mem_address_free(more, granule); }},
      {"event_create", [&] { return driver->event_create(&event, no_timing); }},
      {"event_destroy", [&] { return driver->event_destroy(event); }},
      {"mem_get_info", [&] { return driver->mem_get_info(&free_bytes, &total_bytes); }},
      {"plain_alloc", [&] { return cu.cuMemAlloc_v2(&plain, granule); }},
      {"plain_free", [&] { return cu.cuMemFree_v2(plain); }},
  };
  for (const auto& [name, call] : calls) ASSERT_EQ(call(), CUDA_SUCCESS) << name;  // warmed up
  std::string waited;
  for (const auto& [name, call] : calls) {
    *flag.host = 0;
    wait_for(flag, stream);
    OK(driver->event_record(over, stream));
    ASSERT_EQ(call(), CUDA_SUCCESS) << name;
    if (driver->event_query(over) == CUDA_SUCCESS) waited += std::string(" ") + name;
    *flag.host = 1;
    OK(driver->stream_synchronize(stream));
  }
  RecordProperty("waited", waited.empty() ? "none" : waited.substr(1));
  // An asynchronous copy of pageable memory, and freeing memory, may wait; what moves blocks not.
  for (const char* name : {"mem_create", "mem_map", "mem_set_access", "mem_unmap", "mem_release",
                           "registered_copy_out", "registered_copy_over"})
    EXPECT_EQ((waited + " ").find(" " + std::string(name) + " "), std::string::npos)
        << name << " waits for kernels that use other memory";
  OK(driver->event_destroy(over));
  OK(driver->mem_address_free(address, granule));
  drop(block);
  drop(second);
}

TEST_F(Belief, events_are_of_what_was_queued_before_them) {
  const HostWords flag = host_words();
  CUevent before = nullptr, after = nullptr;
  OK(driver->event_create(&before, no_timing));
  OK(driver->event_create(&after, no_timing));
  OK(driver->event_record(before, stream));
  wait_for(flag, stream);
  OK(driver->event_record(after, stream));
  OK(driver->event_synchronize(before));
  EXPECT_EQ(driver->event_query(after), CUDA_ERROR_NOT_READY);
  OK(driver->stream_wait_event(other, after, 0));
  EXPECT_EQ(driver->stream_query(other), CUDA_ERROR_NOT_READY);
  *flag.host = 1;
  OK(driver->stream_synchronize(other));
  OK(driver->event_query(after));
  OK(driver->event_destroy(before));
  OK(driver->event_destroy(after));
}

/// Work comes behind the last for as long as somebody waits: the stream never runs dry.
TEST_F(Belief, waits_are_for_what_was_queued_before_them) {
  if (!cu.cuStreamWaitValue32_v2) GTEST_SKIP() << "a driver before 11.7";
  constexpr Word most = 20'000;
  constexpr unsigned at_least = 0;
  const HostWords ticket = host_words();
  CUcontext context = nullptr;
  OK(cu.cuCtxGetCurrent(&context));
  const std::function<CUresult()> waits[] = {[&] { return driver->stream_synchronize(stream); },
                                             [&] { return driver->ctx_synchronize(); }};
  for (const auto& wait : waits) {
    *ticket.host = 0;
    OK(cu.cuStreamWaitValue32_v2(stream, ticket.device, 1, at_least));
    std::atomic<bool> waited = false;
    std::thread behind([&] {
      EXPECT_EQ(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
      for (Word next = 2; next <= most && !waited; ++next) {
        EXPECT_EQ(cu.cuStreamWaitValue32_v2(stream, ticket.device, next, at_least), CUDA_SUCCESS);
        *ticket.host = next - 1;
      }
      EXPECT_LT(*ticket.host, most - 1) << "waited for what came later";
      *ticket.host = most;
    });
    EXPECT_EQ(wait(), CUDA_SUCCESS);
    waited = true;
    behind.join();
    OK(driver->stream_synchronize(stream));
  }
}

TEST_F(Belief, streams_wait_for_values) {
  if (!cu.cuStreamWaitValue32_v2 || !cu.cuStreamWriteValue32_v2)
    GTEST_SKIP() << "a driver before 11.7";
  const HostWords ticket = host_words(), wrong = host_words();
  const CUdeviceptr block = mapped();
  constexpr unsigned at_least = 0;
  const auto pending = [&] { return driver->stream_query(stream) == CUDA_ERROR_NOT_READY; };
  for (Word begin : {0u, 0x7ffffff0u, 0xfffffff0u}) {  // the order is cyclic
    *ticket.host = begin;
    const Word wanted = begin + 0x20;
    const CUresult result =
        cu.cuStreamWaitValue32_v2(stream, ticket.device, wanted, at_least);
    if (result == CUDA_ERROR_NOT_SUPPORTED) GTEST_SKIP() << "not supported by this driver";
    OK(result);
    verify(block, begin, wrong.device, stream);
    fill(block, begin, other);
    OK(driver->stream_synchronize(other));
    EXPECT_TRUE(pending());
    *ticket.host = wanted - 1;
    EXPECT_TRUE(pending());
    *ticket.host = wanted + 5;  // beyond it will do
    OK(driver->stream_synchronize(stream));
    EXPECT_EQ(*wrong.host, 0u);
    OK(cu.cuStreamWriteValue32_v2(stream, ticket.device, begin, 0));
    OK(driver->stream_synchronize(stream));
    EXPECT_EQ(*ticket.host, begin);
  }
  drop(block);
}

/// What the engine does while some stream of the program is captured (Driver::ContextGuard).
TEST_F(Belief, a_capture_goes_on_while_blocks_move) {
  const HostWords page = host_words(granule);
  const CUdeviceptr address = mapped(), used = mapped();
  CUmemGenericAllocationHandle handle = 0;
  CUevent event = nullptr;
  OK(driver->event_create(&event, no_timing));
  for (int mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    OK(cu.cuStreamBeginCapture_v2(stream, static_cast<CUstreamCaptureMode>(mode)));
    fill(used, 1, stream);
    {
      Driver::ContextGuard guard(*driver, context);
      char* const host = reinterpret_cast<char*>(const_cast<Word*>(page.host));
      OK(driver->memcpy_dtoh_async(host, address, granule, other));
      OK(driver->event_record(event, other));
      OK(driver->event_synchronize(event));
      OK(driver->stream_query(other));
      OK(driver->mem_unmap(address, granule));
      OK(driver->mem_create(&handle, granule, &prop, 0));
      map(address, handle);
      OK(driver->mem_release(handle));
      OK(driver->memcpy_htod_async(address, host, granule, other));
      OK(driver->stream_synchronize(other));
    }
    fill(used, 2, stream);
    CUgraph graph = nullptr;
    OK(cu.cuStreamEndCapture(stream, &graph));
    EXPECT_NE(graph, nullptr);
    OK(cu.cuGraphDestroy(graph));
  }
  OK(driver->event_destroy(event));
  drop(address);
  drop(used);
}

TEST_F(Belief, the_driver_tells_where_parameters_lie) {
  if (!cu.cuFuncGetParamInfo) GTEST_SKIP() << "a driver before 12.4";
  struct Layout {
    const char* name;
    std::vector<std::pair<size_t, size_t>> parameters;
  };
  constexpr size_t sources = 56;  // tests/gpu/kernels.h
  const Layout layouts[] = {{"fill", {{0, 8}, {8, 8}, {16, 4}}},
                            {"mix", {{0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 4}}},
                            {"products", {{0, 8}, {8, 8}, {16, 8}, {24, 4}, {32, 8}}},
                            {"gather", {{0, sources}, {sources, 8}}}};
  for (const Layout& layout : layouts) {
    size_t offset = 0, bytes = 0, index = 0;
    for (const auto& [at, wide] : layout.parameters) {
      OK(cu.cuFuncGetParamInfo(kernel(layout.name), index++, &offset, &bytes));
      EXPECT_EQ(offset, at) << layout.name << " " << index;
      EXPECT_EQ(bytes, wide) << layout.name << " " << index;
    }
    EXPECT_EQ(cu.cuFuncGetParamInfo(kernel(layout.name), index, &offset, &bytes),
              CUDA_ERROR_INVALID_VALUE);
  }
}

/// Libraries hand their kernels to cuLaunchKernel as if they were functions.
TEST_F(Belief, a_kernel_in_the_place_of_a_function) {
  if (!cu.cuLibraryLoadFromFile || !cu.cuKernelGetParamInfo) GTEST_SKIP() << "a driver before 12.4";
  CUlibrary library = nullptr;
  CUkernel of_library = nullptr;
  OK(cu.cuLibraryLoadFromFile(&library, std::getenv("FIRN_TEST_KERNELS"), nullptr, nullptr, 0,
                              nullptr, nullptr, 0));
  OK(cu.cuLibraryGetKernel(&of_library, library, "fill"));
  size_t offset = 0, bytes = 0;
  OK(cu.cuKernelGetParamInfo(of_library, 2, &offset, &bytes));
  EXPECT_EQ(offset, 16u);
  EXPECT_EQ(bytes, 4u);
  EXPECT_EQ(cu.cuKernelGetParamInfo(of_library, 3, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  const HostWords wrong = host_words();
  const CUdeviceptr block = mapped();
  const unsigned long long count = granule / sizeof(Word);
  const Word seed = 77;
  OK(launch(reinterpret_cast<CUfunction>(of_library), {&block, &count, &seed}, stream));
  verify(block, seed, wrong.device, stream);
  OK(driver->stream_synchronize(stream));
  EXPECT_EQ(*wrong.host, 0u);
  drop(block);
}

/// (So that tests that count wrong words can fail.)
TEST_F(Belief, wrong_words_are_counted) {
  const HostWords wrong = host_words();
  const CUdeviceptr block = mapped();
  fill(block, 3, stream);
  OK(driver->memset_d8_async(block + 4096, 0x55, 40, stream));
  verify(block, 3, wrong.device, stream);
  OK(driver->stream_synchronize(stream));
  EXPECT_EQ(*wrong.host, 10u);
  drop(block);
}

}  // namespace
}  // namespace firn::beliefs
