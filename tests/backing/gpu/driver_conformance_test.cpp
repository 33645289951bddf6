// The driver seam's conformance suite: through firn::Driver alone, on the software GPU or on the
// real driver (FIRN_TEST_DRIVER names the library). What it asserts is what the engine relies on.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "firn/driver.h"

namespace {

using firn::Driver;
#define OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

class DriverConformance : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* library = std::getenv("FIRN_TEST_DRIVER");
    auto opened = firn::open_driver(library ? library : "");
    if (!opened) GTEST_SKIP() << describe(opened.error());
    driver = std::move(*opened);
    if (driver->init(0) != CUDA_SUCCESS) GTEST_SKIP() << "no GPU";
    OK(driver->device_get(&device, 0));
    OK(driver->device_primary_ctx_retain(&context, device));
    OK(driver->ctx_set_current(context));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(driver->mem_get_allocation_granularity(&granule, &prop,
                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING));
  }
  void TearDown() override {
    if (!stream) return;
    OK(driver->stream_destroy(stream));
    OK(driver->ctx_set_current(nullptr));
    OK(driver->device_primary_ctx_release(device));
  }
  CUdeviceptr map_new(size_t bytes, CUmemGenericAllocationHandle* handle) {
    CUdeviceptr address = 0;
    EXPECT_EQ(driver->mem_address_reserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver->mem_create(handle, bytes, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver->mem_map(address, bytes, 0, *handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver->mem_set_access(address, bytes, &access, 1), CUDA_SUCCESS);
    return address;
  }
  std::vector<unsigned char> read(CUdeviceptr address, size_t bytes) {
    std::vector<unsigned char> host(bytes);
    EXPECT_EQ(driver->memcpy_dtoh_async(host.data(), address, bytes, stream), CUDA_SUCCESS);
    EXPECT_EQ(driver->stream_synchronize(stream), CUDA_SUCCESS);
    return host;
  }

  std::unique_ptr<Driver> driver;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUmemAllocationProp prop{};
  CUmemAccessDesc access{};
  size_t granule = 0;
};

TEST_F(DriverConformance, device) {
  int count = 0, value = 0, version = 0;
  OK(driver->device_get_count(&count));
  EXPECT_GE(count, 1);
  OK(driver->driver_get_version(&version));
  EXPECT_GE(version, 11020);
  OK(driver->device_get_attribute(
      &value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
  EXPECT_EQ(value, 1);
  OK(driver->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device));
  EXPECT_EQ(value, 1);
  char name[64] = {};
  OK(driver->device_get_name(name, sizeof name, device));
  EXPECT_GT(std::strlen(name), 3u);
  size_t bytes = 0;
  OK(driver->device_total_mem(&bytes, device));
  EXPECT_GE(bytes, granule);
  EXPECT_EQ(driver->device_get(&device, count), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(granule, size_t{2} << 20);
}

TEST_F(DriverConformance, reserves_far_more_than_there_is) {
  CUdeviceptr address = 0;
  const size_t bytes = size_t{1} << 40;
  OK(driver->mem_address_reserve(&address, bytes, 0, 0, 0));
  EXPECT_EQ(address % granule, 0u);
  OK(driver->mem_address_free(address, bytes));
}

TEST_F(DriverConformance, frames_move_between_addresses) {
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr first = map_new(granule, &handle);
  OK(driver->memset_d8_async(first, 0x5a, granule, stream));
  OK(driver->stream_synchronize(stream));
  OK(driver->mem_unmap(first, granule));
  CUdeviceptr second = 0;
  OK(driver->mem_address_reserve(&second, 2 * granule, 0, 0, 0));
  OK(driver->mem_map(second + granule, granule, 0, handle, 0));
  OK(driver->mem_set_access(second + granule, granule, &access, 1));
  EXPECT_EQ(read(second + granule, granule), std::vector<unsigned char>(granule, 0x5a));
  OK(driver->mem_unmap(second + granule, granule));
  OK(driver->mem_release(handle));
  OK(driver->mem_address_free(first, granule));
  OK(driver->mem_address_free(second, 2 * granule));
}

TEST_F(DriverConformance, same_address_new_frame) {
  CUmemGenericAllocationHandle handle = 0, other = 0;
  const CUdeviceptr address = map_new(granule, &handle);
  std::vector<unsigned char> bytes(granule);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 31 >> 3);
  OK(driver->memcpy_htod_async(address, bytes.data(), granule, stream));
  std::vector<unsigned char> spilled = read(address, granule);
  EXPECT_EQ(spilled, bytes);
  OK(driver->mem_unmap(address, granule));
  OK(driver->mem_release(handle));
  OK(driver->mem_create(&other, granule, &prop, 0));
  OK(driver->mem_map(address, granule, 0, other, 0));
  OK(driver->mem_set_access(address, granule, &access, 1));
  OK(driver->memcpy_htod_async(address, spilled.data(), granule, stream));
  EXPECT_EQ(read(address, granule), bytes);
  OK(driver->mem_unmap(address, granule));
  OK(driver->mem_release(other));
  OK(driver->mem_address_free(address, granule));
}

TEST_F(DriverConformance, a_frame_at_several_addresses_is_one_memory) {
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr first = map_new(granule, &handle);
  CUdeviceptr second = 0;
  OK(driver->mem_address_reserve(&second, granule, 0, 0, 0));
  OK(driver->mem_map(second, granule, 0, handle, 0));
  OK(driver->mem_set_access(second, granule, &access, 1));
  // As blocks use it that share a frame: each its own part.
  OK(driver->memset_d8_async(first, 1, granule / 2, stream));
  OK(driver->memset_d8_async(second + granule / 2, 2, granule / 2, stream));
  std::vector<unsigned char> both(granule, 1);
  std::fill(both.begin() + static_cast<ptrdiff_t>(granule / 2), both.end(), 2);
  EXPECT_EQ(read(first, granule), both);
  EXPECT_EQ(read(second, granule), both);
  OK(driver->mem_unmap(first, granule));
  EXPECT_EQ(read(second, granule), both);
  OK(driver->mem_unmap(second, granule));
  OK(driver->mem_release(handle));
  OK(driver->mem_address_free(first, granule));
  OK(driver->mem_address_free(second, granule));
}

TEST_F(DriverConformance, exported_frames_live_on_with_who_imported_them) {
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  const CUdeviceptr first = map_new(granule, &handle);
  int fd = -1;
  OK(driver->mem_export_to_shareable_handle(&fd, handle, prop.requestedHandleTypes, 0));
  OK(driver->mem_import_from_shareable_handle(
      &imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)), prop.requestedHandleTypes));
  ASSERT_EQ(::close(fd), 0);
  CUdeviceptr second = 0;
  OK(driver->mem_address_reserve(&second, granule, 0, 0, 0));
  OK(driver->mem_map(second, granule, 0, imported, 0));
  OK(driver->mem_set_access(second, granule, &access, 1));
  OK(driver->memset_d8_async(first, 0x3c, granule, stream));
  OK(driver->stream_synchronize(stream));
  OK(driver->mem_unmap(first, granule));
  OK(driver->mem_release(handle));
  EXPECT_EQ(read(second, granule), std::vector<unsigned char>(granule, 0x3c));
  OK(driver->mem_unmap(second, granule));
  OK(driver->mem_release(imported));
  OK(driver->mem_address_free(first, granule));
  OK(driver->mem_address_free(second, granule));
}

TEST_F(DriverConformance, one_range_of_several_frames) {
  CUdeviceptr address = 0;
  OK(driver->mem_address_reserve(&address, 3 * granule, 0, 0, 0));
  CUmemGenericAllocationHandle handles[3];
  for (size_t i = 0; i < 3; ++i) {
    OK(driver->mem_create(&handles[i], granule, &prop, 0));
    OK(driver->mem_map(address + i * granule, granule, 0, handles[i], 0));
  }
  OK(driver->mem_set_access(address, 3 * granule, &access, 1));
  OK(driver->memset_d8_async(address + granule / 2, 7, 2 * granule, stream));  // across them
  const auto bytes = read(address + granule / 2, 2 * granule);
  EXPECT_EQ(bytes, std::vector<unsigned char>(2 * granule, 7));
  OK(driver->mem_unmap(address, 3 * granule));
  for (auto handle : handles) OK(driver->mem_release(handle));
  OK(driver->mem_address_free(address, 3 * granule));
}

TEST_F(DriverConformance, create_beyond_capacity) {
  size_t free_bytes = 0, total_bytes = 0;
  OK(driver->mem_get_info(&free_bytes, &total_bytes));
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(driver->mem_create(&handle, total_bytes / granule * granule + 4 * granule, &prop, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(DriverConformance, memory_info_follows_frames) {
  size_t before = 0, during = 0, total = 0;
  OK(driver->mem_get_info(&before, &total));
  CUmemGenericAllocationHandle handle = 0;
  OK(driver->mem_create(&handle, 8 * granule, &prop, 0));
  OK(driver->mem_get_info(&during, &total));
  EXPECT_LE(during + 8 * granule, before);
  OK(driver->mem_release(handle));
}

TEST_F(DriverConformance, registered_host_memory) {
  const size_t bytes = 4u << 20;
  void* host = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(host, MAP_FAILED);
  std::memset(host, 9, bytes);
  OK(driver->mem_host_register(host, bytes, CU_MEMHOSTREGISTER_PORTABLE));
  EXPECT_EQ(driver->mem_host_register(host, bytes, CU_MEMHOSTREGISTER_PORTABLE),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr address = map_new(bytes, &handle);
  OK(driver->memcpy_htod_async(address, host, bytes, stream));
  OK(driver->memset_d8_async(address, 1, 1, stream));
  OK(driver->memcpy_dtoh_async(host, address, bytes, stream));
  OK(driver->stream_synchronize(stream));
  EXPECT_EQ(static_cast<char*>(host)[0], 1);
  EXPECT_EQ(static_cast<char*>(host)[bytes - 1], 9);
  OK(driver->mem_unmap(address, bytes));
  OK(driver->mem_release(handle));
  OK(driver->mem_address_free(address, bytes));
  OK(driver->mem_host_unregister(host));
  EXPECT_EQ(driver->mem_host_unregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  ASSERT_EQ(::munmap(host, bytes), 0);
}

TEST_F(DriverConformance, events_order_streams) {
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr address = map_new(16 * granule, &handle);
  CUstream other = nullptr;
  CUevent done = nullptr, late = nullptr;
  OK(driver->stream_create(&other, CU_STREAM_NON_BLOCKING));
  OK(driver->event_create(&done, CU_EVENT_DEFAULT));
  OK(driver->event_create(&late, CU_EVENT_DEFAULT));
  EXPECT_EQ(driver->event_query(done), CUDA_SUCCESS);  // never recorded
  for (unsigned i = 1; i <= 20; ++i) {
    OK(driver->memset_d8_async(address, static_cast<unsigned char>(i), 16 * granule, stream));
    OK(driver->event_record(done, stream));
    OK(driver->stream_wait_event(other, done, 0));
    OK(driver->memset_d8_async(address + 5, static_cast<unsigned char>(100 + i), 1, other));
    OK(driver->event_record(late, other));
    OK(driver->stream_wait_event(stream, late, 0));
    const auto bytes = read(address, 16);
    ASSERT_EQ(bytes[4], i);
    ASSERT_EQ(bytes[5], 100 + i);
  }
  OK(driver->event_synchronize(late));
  EXPECT_EQ(driver->event_query(late), CUDA_SUCCESS);
  EXPECT_EQ(driver->stream_query(other), CUDA_SUCCESS);
  float ms = -1;
  OK(driver->event_elapsed_time(&ms, done, late));
  EXPECT_GE(ms, 0);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  OK(driver->stream_is_capturing(stream, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  OK(driver->event_destroy(done));
  OK(driver->event_destroy(late));
  OK(driver->stream_destroy(other));
  OK(driver->ctx_synchronize());
  OK(driver->mem_unmap(address, 16 * granule));
  OK(driver->mem_release(handle));
  OK(driver->mem_address_free(address, 16 * granule));
}

TEST_F(DriverConformance, context_guard_restores) {
  CUcontext now = nullptr;
  OK(driver->ctx_set_current(nullptr));
  {
    Driver::ContextGuard guard(*driver, context);
    OK(driver->ctx_get_current(&now));
    EXPECT_EQ(now, context);
    {
      Driver::ContextGuard inner(*driver, context);
    }
    OK(driver->ctx_get_current(&now));
    EXPECT_EQ(now, context);
  }
  OK(driver->ctx_get_current(&now));
  EXPECT_EQ(now, nullptr);
  OK(driver->ctx_set_current(context));
}

TEST_F(DriverConformance, errors_in_words) {
  const firn::Error error = driver->error("cuMemMap", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(error.text, "cuMemMap: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  EXPECT_EQ(error.detail, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(error.code, firn::Code::driver);
}

TEST(DriverTable, missing_library_is_named) {
  auto opened = firn::open_driver("libfirn-no-such-driver.so.1");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, firn::Code::not_supported);
  EXPECT_NE(opened.error().text.find("libfirn-no-such-driver.so.1"), std::string::npos);
}

TEST(DriverTable, library_that_is_no_driver) {
  auto opened = firn::open_driver("libm.so.6");
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().text.find("lacks cuInit"), std::string::npos);
}

TEST_F(DriverConformance, calls_within_a_guard_do_not_spoil_a_capture) {
  const auto mode = [&](CUstreamCaptureMode to) {
    EXPECT_EQ(driver->thread_exchange_stream_capture_mode(&to), CUDA_SUCCESS);
    return to;
  };
  const CUstreamCaptureMode before = mode(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  {
    Driver::ContextGuard guard(*driver, context);
    EXPECT_EQ(mode(CU_STREAM_CAPTURE_MODE_RELAXED), CU_STREAM_CAPTURE_MODE_RELAXED);
  }
  EXPECT_EQ(mode(before), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

}  // namespace
