// What Firn believes of mapped memory, on the software GPU or on the real driver: granules,
// offsets, access, other frames at the same address while kernels run, host memory at device
// addresses.
#include "beliefs.h"

namespace firn::beliefs {
namespace {

TEST_F(Belief, frames_are_whole_granules) {
  size_t least = 0, advised = 0, of_host = 0;
  OK(driver->mem_get_allocation_granularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  OK(driver->mem_get_allocation_granularity(&advised, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  EXPECT_EQ(least, granule);
  EXPECT_EQ(advised % granule, 0u);
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  OK(driver->mem_get_allocation_granularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(least, granule);
  CUmemAllocationProp host = prop;
  host.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  host.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  if (driver->mem_get_allocation_granularity(&of_host, &host, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
      CUDA_SUCCESS) {
    EXPECT_EQ(granule % of_host, 0u);
  }
  RecordProperty("recommended_bytes", std::to_string(advised));
  RecordProperty("host_numa_bytes", std::to_string(of_host));
}

TEST_F(Belief, frames_that_may_be_shared) {
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver->mem_create(&handle, granule, &prop, 0);
  RecordProperty("answer", std::to_string(result));
  if (result == CUDA_SUCCESS) {
    OK(driver->mem_release(handle));
    return;
  }
  // As in some containers; frames are then made without it (allocator/memory/frames.cpp).
  EXPECT_TRUE(result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED) << result;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  OK(driver->mem_create(&handle, granule, &prop, 0));
  OK(driver->mem_release(handle));
}

TEST_F(Belief, a_frame_is_mapped_from_its_begin) {
  const CUdeviceptr address = reserve(granule);
  const CUmemGenericAllocationHandle handle = frame(2 * granule);
  EXPECT_EXIT(end_by(driver->mem_map(address, granule, granule, handle, 0)), refused, "");
  OK(driver->mem_release(handle));
  OK(driver->mem_address_free(address, granule));
}

TEST_F(Belief, an_address_has_one_frame) {
  const CUdeviceptr address = mapped();
  const CUmemGenericAllocationHandle handle = frame();
  EXPECT_EXIT(end_by(driver->mem_map(address, granule, 0, handle, 0)), refused, "");
  OK(driver->mem_release(handle));
  drop(address);
}

TEST_F(Belief, a_mapping_is_not_split) {
  const CUdeviceptr address = mapped(2 * granule);
  EXPECT_EXIT(end_by(driver->mem_unmap(address, granule)), refused, "");
  drop(address, 2 * granule);
}

TEST_F(Belief, several_mappings_leave_in_one_call) {
  const CUdeviceptr address = reserve(3 * granule);
  for (size_t i = 0; i < 3; ++i) {
    const CUmemGenericAllocationHandle handle = frame();
    map(address + i * granule, handle);
    OK(driver->mem_release(handle));
  }
  fill(address, 1, stream, 3 * granule);
  OK(driver->stream_synchronize(stream));
  drop(address, 3 * granule);
}

TEST_F(Belief, no_access_before_it_is_given) {
  const CUdeviceptr address = reserve(granule);
  const CUmemGenericAllocationHandle handle = frame();
  OK(driver->mem_map(address, granule, 0, handle, 0));
  EXPECT_EXIT(
      {
        fill(address, 1, stream);
        end_by(CUDA_SUCCESS);
      },
      refused, "");
  OK(driver->mem_set_access(address, granule, &access, 1));
  const HostWords wrong = host_words();
  fill(address, 1, stream);
  verify(address, 1, wrong.device, stream);
  OK(driver->stream_synchronize(stream));
  EXPECT_EQ(*wrong.host, 0u);
  OK(driver->mem_release(handle));
  drop(address);
}

TEST_F(Belief, access_is_given_to_old_and_new_mappings_alike) {
  const CUdeviceptr address = reserve(4 * granule);
  const CUmemGenericAllocationHandle whole = frame(2 * granule);
  map(address, whole, 2 * granule);
  for (size_t i = 2; i < 4; ++i) {
    const CUmemGenericAllocationHandle handle = frame();
    OK(driver->mem_map(address + i * granule, granule, 0, handle, 0));
    OK(driver->mem_release(handle));
  }
  OK(driver->mem_set_access(address, 4 * granule, &access, 1));
  const HostWords wrong = host_words();
  fill(address, 5, stream, 4 * granule);
  verify(address, 5, wrong.device, stream, 4 * granule);
  OK(driver->stream_synchronize(stream));
  EXPECT_EQ(*wrong.host, 0u);
  OK(driver->mem_release(whole));
  drop(address, 4 * granule);
}

TEST_F(Belief, memory_that_is_away_cannot_be_used_by_mistake) {
  const CUdeviceptr address = mapped();
  fill(address, 1, stream);
  OK(driver->stream_synchronize(stream));
  OK(driver->mem_unmap(address, granule));
  EXPECT_EXIT(
      {
        fill(address, 1, stream);
        end_by(CUDA_SUCCESS);
      },
      refused, "");
  OK(driver->mem_address_free(address, granule));
}

/// As a block spills and comes back: its bytes are copied out, its frame goes to another block,
/// other frames with other bytes come to its address, and kernels on other streams run all the
/// while.
TEST_F(Belief, other_frames_at_the_same_address_while_kernels_run) {
  constexpr size_t blocks = 4;
  constexpr Word rounds = 100;
  const HostWords wrong = host_words(), copy = host_words(blocks * granule);
  const CUdeviceptr busy = mapped(8 * granule), arena = reserve(blocks * granule);
  CUmemGenericAllocationHandle frames[blocks];
  CUstream background = nullptr;
  CUevent filled = nullptr, out = nullptr, in = nullptr;
  OK(driver->stream_create(&background, CU_STREAM_NON_BLOCKING));
  for (CUevent* event : {&filled, &out, &in}) OK(driver->event_create(event, no_timing));
  for (size_t i = 0; i < blocks; ++i) map(arena + i * granule, frames[i] = frame());
  char* const host = reinterpret_cast<char*>(const_cast<Word*>(copy.host));
  for (Word round = 0; round < rounds; ++round) {
    fill(busy, round, background, 8 * granule);
    verify(busy, round, wrong.device, background, 8 * granule);
    for (size_t i = 0; i < blocks; ++i)
      fill(arena + i * granule, 1000 * round + static_cast<Word>(i), stream);
    OK(driver->event_record(filled, stream));
    OK(driver->stream_wait_event(other, filled, 0));
    OK(driver->memcpy_dtoh_async(host, arena, granule, other));
    for (size_t i = 1; i < blocks; ++i)
      OK(driver->memcpy_dtoh_async(host + i * granule, arena + i * granule, granule, other));
    OK(driver->event_record(out, other));
    OK(driver->event_synchronize(out));  // of every stream that used them
    for (size_t i = 0; i < blocks; ++i) OK(driver->mem_unmap(arena + i * granule, granule));
    for (size_t i = 0; i < blocks; ++i) {
      const CUdeviceptr at = arena + i * granule;
      map(at, frames[(i + round) % blocks]);
      OK(driver->memcpy_htod_async(at, host + i * granule, granule, other));
    }
    OK(driver->event_record(in, other));
    OK(driver->stream_wait_event(stream, in, 0));
    for (size_t i = 0; i < blocks; ++i)
      verify(arena + i * granule, 1000 * round + static_cast<Word>(i), wrong.device, stream);
  }
  OK(driver->ctx_synchronize());
  EXPECT_EQ(*wrong.host, 0u);
  for (CUmemGenericAllocationHandle handle : frames) OK(driver->mem_release(handle));
  for (CUevent event : {filled, out, in}) OK(driver->event_destroy(event));
  OK(driver->stream_destroy(background));
  drop(arena, blocks * granule);
  drop(busy, 8 * granule);
}

/// A block that is larger than the budget is used in host memory, at its own address.
TEST_F(Belief, host_memory_at_a_device_address) {
  int node = attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  RecordProperty("node", std::to_string(node));
  RecordProperty("attribute_141", std::to_string(attribute(141)));
  CUmemAllocationProp host = prop;
  host.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, std::max(node, 0)};
  CUmemGenericAllocationHandle there = 0;
  const CUresult made = driver->mem_create(&there, 2 * granule, &host, 0);
  RecordProperty("answer", std::to_string(made));
  OK(made);
  const HostWords wrong = host_words();
  const CUdeviceptr address = reserve(2 * granule);
  const CUmemGenericAllocationHandle here = frame(2 * granule);
  for (Word round = 0; round < 3; ++round) {
    map(address, here, 2 * granule);
    fill(address, 2 * round, stream, 2 * granule);
    verify(address, 2 * round, wrong.device, stream, 2 * granule);
    OK(driver->stream_synchronize(stream));
    OK(driver->mem_unmap(address, 2 * granule));
    map(address, there, 2 * granule);
    if (round > 0) verify(address, 2 * round - 1, wrong.device, stream, 2 * granule);
    fill(address, 2 * round + 1, stream, 2 * granule);
    verify(address, 2 * round + 1, wrong.device, stream, 2 * granule);
    OK(driver->stream_synchronize(stream));
    OK(driver->mem_unmap(address, 2 * granule));
  }
  EXPECT_EQ(*wrong.host, 0u);
  OK(driver->mem_release(here));
  OK(driver->mem_release(there));
  OK(driver->mem_address_free(address, 2 * granule));
}

TEST_F(Belief, a_mapped_address_is_known_as_the_devices) {
  const CUdeviceptr address = mapped();
  unsigned type = 0;
  CUdeviceptr same = 0;
  OK(cu.cuPointerGetAttribute(&type, 2, address + 64));  // the memory's type
  EXPECT_EQ(type, static_cast<unsigned>(memory_device));
  OK(cu.cuPointerGetAttribute(&same, 3, address + 64));  // the device's pointer: Triton asks for it
  EXPECT_EQ(same, address + 64);
  OK(driver->mem_unmap(address, granule));
  // Whatever comes, Firn answers for its own addresses in the driver's place.
  RecordProperty("answer_when_away",
                 std::to_string(cu.cuPointerGetAttribute(&same, 3, address + 64)));
  OK(driver->mem_address_free(address, granule));
}

}  // namespace
}  // namespace firn::beliefs
