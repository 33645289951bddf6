// Tags in place of bytes: what copies, fills and unmapping do to them, and when.
#include <sys/mman.h>

#include <array>
#include <vector>

#include "fixture.h"

namespace {

class Tags : public SoftwareGpu {
 protected:
  void SetUp() override {
    FirnGpuConfig config{};
    config.virtual_clock = config.no_bytes = config.tags = 1;
    config.link_bytes_s = 1e9;
    config.link_latency_ns = 1000;
    start(config);
    host_ = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(host_, MAP_FAILED);
    OK(cuMemHostRegister_v2(host_, bytes, 0));
  }
  void TearDown() override {
    SoftwareGpu::TearDown();
    (void)::munmap(host_, bytes);
  }
  static constexpr size_t bytes = granule, count = bytes / firn_gpu_tag_bytes;
  uint64_t host() const { return reinterpret_cast<uint64_t>(host_); }
  static std::vector<uint64_t> tags(uint64_t address, size_t of = bytes) {
    std::vector<uint64_t> read(of / firn_gpu_tag_bytes);
    EXPECT_EQ(firnGpuTagsRead(address, of, read.data()), firn_gpu_tags_done);
    return read;
  }
  static std::vector<uint64_t> all(uint64_t tag) { return std::vector<uint64_t>(count, tag); }
  static bool are(uint64_t address, uint64_t first) {
    uint64_t at = 0, found = 0;
    return firnGpuTagsCompare(0, address, bytes, first, &at, &found) == firn_gpu_tags_done;
  }
  void* host_ = nullptr;
};

TEST_F(Tags, need_a_gpu_without_bytes) {
  firnGpuReset();
  FirnGpuConfig config{};
  config.struct_bytes = sizeof config;
  config.virtual_clock = config.tags = 1;
  EXPECT_EQ(firnGpuConfigure(&config), -1);
}

TEST_F(Tags, a_copy_out_moves_them_at_its_end) {
  const CUdeviceptr address = mapped();
  EXPECT_EQ(tags(address), all(firn_gpu_tag_undefined));
  ASSERT_EQ(firnGpuTagsFill(0, address, bytes, 100), firn_gpu_tags_done);
  const CUstream s = stream();
  OK(cuMemcpyDtoHAsync_v2(host_, address, bytes, s));
  firnGpuAdvanceTo(firnGpuNextEvent() - 1);
  EXPECT_EQ(tags(host()), all(firn_gpu_tag_in_flight));
  OK(cuStreamSynchronize(s));
  EXPECT_TRUE(are(host(), 100));
  EXPECT_TRUE(are(address, 100));
}

TEST_F(Tags, of_a_copy_in_nothing_is_to_be_used_before_its_end) {
  const CUdeviceptr address = mapped();
  ASSERT_EQ(firnGpuTagsFill(-1, host(), bytes, 7), firn_gpu_tags_done);
  const CUstream s = stream();
  OK(cuMemcpyHtoDAsync_v2(address, host_, bytes, s));
  EXPECT_EQ(firnGpuTagsFill(0, address, bytes, 1), firn_gpu_tags_early);
  EXPECT_EQ(tags(address), all(firn_gpu_tag_in_flight));
  OK(cuStreamSynchronize(s));
  EXPECT_TRUE(are(address, 7));
}

TEST_F(Tags, a_source_that_changes_under_a_copy_is_torn) {
  const CUdeviceptr address = mapped();
  ASSERT_EQ(firnGpuTagsFill(0, address, bytes, 100), firn_gpu_tags_done);
  const CUstream s = stream();
  OK(cuMemcpyDtoHAsync_v2(host_, address, bytes, s));
  const uint64_t other = 1;
  ASSERT_EQ(firnGpuTagsWrite(address + 3 * firn_gpu_tag_bytes, 1, &other), firn_gpu_tags_done);
  OK(cuStreamSynchronize(s));
  std::vector<uint64_t> expected(count);
  for (size_t i = 0; i < count; ++i) expected[i] = i == 3 ? uint64_t{firn_gpu_tag_torn} : 100 + i;
  EXPECT_EQ(tags(host()), expected);
}

TEST_F(Tags, copies_begin_and_end_at_any_4_kib) {
  const CUdeviceptr address = mapped();
  ASSERT_EQ(firnGpuTagsFill(0, address, bytes, 100), firn_gpu_tags_done);
  const CUstream s = stream();
  constexpr size_t part = 5 * firn_gpu_tag_bytes;
  OK(cuMemcpyDtoHAsync_v2(static_cast<char*>(host_) + firn_gpu_tag_bytes,
                          address + 2 * firn_gpu_tag_bytes, part, s));
  OK(cuStreamSynchronize(s));
  const std::vector<uint64_t> there = tags(host());
  EXPECT_EQ(there[0], firn_gpu_tag_undefined);
  for (size_t i = 1; i <= 5; ++i) EXPECT_EQ(there[i], 101 + i);
  EXPECT_EQ(there[6], firn_gpu_tag_undefined);
}

TEST_F(Tags, frames_bring_theirs_wherever_they_are_mapped) {
  const CUdeviceptr a = reserve(bytes), b = reserve(bytes);
  const auto handle = frame();
  const CUmemAccessDesc open = access();
  OK(cuMemMap(a, bytes, 0, handle, 0));
  OK(cuMemSetAccess(a, bytes, &open, 1));
  ASSERT_EQ(firnGpuTagsFill(0, a, bytes, 100), firn_gpu_tags_done);
  OK(cuMemUnmap(a, bytes));
  EXPECT_EQ(firnGpuTagsFill(0, a, bytes, 1), firn_gpu_tags_unmapped);
  OK(cuMemMap(b, bytes, 0, handle, 0));
  EXPECT_EQ(firnGpuTagsFill(0, b, bytes, 1), firn_gpu_tags_unmapped) << "nobody has access";
  CUmemAccessDesc reads = access();
  reads.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  OK(cuMemSetAccess(b, bytes, &reads, 1));
  EXPECT_TRUE(are(b, 100));
  EXPECT_EQ(firnGpuTagsFill(0, b, bytes, 1), firn_gpu_tags_read_only);
  OK(cuMemUnmap(b, bytes));
  OK(cuMemRelease(handle));
  EXPECT_EQ(tags(mapped()), all(firn_gpu_tag_undefined)) << "new frames hold nothing of others";
}

TEST_F(Tags, fills_leave_their_value) {
  const CUdeviceptr address = mapped();
  const CUstream s = stream();
  OK(cuMemsetD8Async(address, 0xFF, bytes, s));
  EXPECT_EQ(tags(address), all(firn_gpu_tag_undefined));
  OK(cuStreamSynchronize(s));
  EXPECT_EQ(tags(address), all(firn_gpu_tag_filled + 0xFF));
}

}  // namespace
