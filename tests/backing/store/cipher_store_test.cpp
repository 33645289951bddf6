// Encrypted slots. All that a store promises is tested of them in store_conformance and store_model.
#include "backing/store/cipher_store.h"

#include <sys/wait.h>

#include <algorithm>
#include <atomic>

#include "tests/backing/store/store_testing.h"

namespace firn::testing_store {
namespace {

constexpr size_t slot_bytes = 1u << 20;

/// Another store's slots; a bit of what is read is changed after that store has compared its sum.
class Forged final : public Store {
 public:
  explicit Forged(std::unique_ptr<Store> lower) : lower_(std::move(lower)) {}
  Result<void> attach_staging(std::span<std::byte> staging) override {
    return lower_->attach_staging(staging);
  }
  void detach_staging(std::span<std::byte> staging) override { lower_->detach_staging(staging); }
  Result<Slot> reserve(size_t bytes, bool wait) override { return lower_->reserve(bytes, wait); }
  Result<void> write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                     uint64_t tag) override {
    return lower_->write(queue, slot, bytes, tag);
  }
  Result<void> read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) override {
    into = bytes;
    return lower_->read(queue, slot, bytes, tag);
  }
  bool cancel(unsigned queue, uint64_t tag) override { return lower_->cancel(queue, tag); }
  void discard(Slot slot) override { lower_->discard(slot); }
  size_t poll(unsigned queue, std::span<StoreCompletion> out) override {
    const size_t count = lower_->poll(queue, out);
    for (size_t i = 0; i < count; ++i)
      if (out[i].kind == StoreCompletion::Kind::read && forge) into[123] ^= std::byte{4};
    return count;
  }
  StoreStats stats() const override { return lower_->stats(); }
  void abandon() override { lower_->abandon(); }

  bool forge = false;
  std::span<std::byte> into;

 private:
  std::unique_ptr<Store> lower_;
};

class EncryptedStore : public testing::Test {
 protected:
  void SetUp() override {
    auto lower = open_file_store(small_options(dir_.path(), StoreOptions::Kind::automatic), calls_);
    ASSERT_TRUE(lower) << describe(lower.error());
    auto forged = std::make_unique<Forged>(std::move(*lower));
    forged_ = forged.get();
    auto store = encrypted(std::move(forged), wall_clock());
    ASSERT_TRUE(store) << describe(store.error());
    open_.store = std::move(*store);
    add_staging(open_, 16u << 20);
  }
  Store& store() { return *open_.store; }
  Slot filled(uint64_t seed) {
    Result<Slot> slot = store().reserve(slot_bytes);
    EXPECT_TRUE(slot) << describe(slot.error());
    fill(bytes(), seed);
    const StoreCompletion done = write_now(store(), *open_.clock, *slot, bytes());
    EXPECT_EQ(done.error.code, Code::ok) << describe(done.error);
    EXPECT_EQ(done.sum, sum_of(bytes().data(), slot_bytes)) << "of the plain bytes";
    return *slot;
  }
  std::span<std::byte> bytes() { return open_.piece(0, slot_bytes); }
  std::span<std::byte> back() { return open_.piece(4u << 20, slot_bytes); }

  TempDir dir_;
  FaultyCalls calls_;
  OpenStore open_;
  Forged* forged_ = nullptr;
};

TEST_F(EncryptedStore, nothing_of_the_bytes_reaches_the_file) {
  std::atomic<size_t> plain{0}, written{0};
  fill(bytes(), 7);
  std::vector<std::byte> expected(bytes().begin(), bytes().end());
  calls_.at_begin = [&](const FileCall& call) {
    if (call.write) {
      written += call.bytes;
      for (size_t i = 0; i + 16 <= call.bytes; i += 16) {
        const auto* at = call.data + i;
        plain += std::memcmp(at, expected.data() + call.offset % slot_bytes + i, 16) == 0;
      }
    }
    return static_cast<ssize_t>(call.bytes);
  };
  const Slot slot = filled(7);
  calls_.at_begin = nullptr;
  EXPECT_EQ(written, slot_bytes);
  EXPECT_EQ(plain, 0u);
  EXPECT_TRUE(holds(bytes(), 7)) << "the caller's stay as they are";
  const StoreCompletion read = read_now(store(), *open_.clock, slot, back());
  EXPECT_EQ(read.error.code, Code::ok) << describe(read.error);
  EXPECT_TRUE(holds(back(), 7));
  EXPECT_EQ(store().holds(slot, bytes()), std::optional(true));
  EXPECT_EQ(store().stats().cipher, "AES-256-GCM");
}

TEST_F(EncryptedStore, what_somebody_has_changed_is_not_handed_over) {
  const Slot slot = filled(1), other = filled(2);
  forged_->forge = true;
  const StoreCompletion read = read_now(store(), *open_.clock, slot, back());
  EXPECT_EQ(read.error.code, Code::corrupt);
  EXPECT_NE(read.error.text.find("fails to decrypt"), std::string::npos) << read.error.text;
  EXPECT_EQ(store().stats().corrupt, 1u);
  forged_->forge = false;
  EXPECT_EQ(read_now(store(), *open_.clock, other, back()).error.code, Code::ok);
  EXPECT_TRUE(holds(back(), 2));
}

TEST_F(EncryptedStore, a_disk_that_corrupts_is_found_below) {
  const Slot slot = filled(1);
  auto left = std::make_shared<std::atomic<int>>(1);
  calls_.at_end = [left](const FileCall& call, ssize_t result) {
    if (!call.write && result > 0 && (*left)-- > 0) call.data[99] ^= std::byte{1};
    return result;
  };
  EXPECT_EQ(read_now(store(), *open_.clock, slot, back()).error.code, Code::ok) << "healed";
  EXPECT_TRUE(holds(back(), 1));
  EXPECT_EQ(store().stats().reread, 1u);
}

TEST_F(EncryptedStore, more_writes_than_buffers) {
  constexpr size_t count = 3 * CipherStoreCore::buffers_most;
  std::vector<Slot> slots;
  for (size_t i = 0; i < count; ++i) {
    // Of different sizes, so that buffers are replaced.
    const size_t size = (64u << 10) * (1 + i % 7);
    slots.push_back(*store().reserve(size));
    const auto part = open_.piece(i * (512u << 10), size);
    fill(part, i);
    ASSERT_TRUE(store().write(0, slots.back(), part, i));
  }
  for (const StoreCompletion& done : await(store(), *open_.clock, 0, count))
    EXPECT_EQ(done.error.code, Code::ok) << describe(done.error);
  for (size_t i = 0; i < count; ++i) {
    const auto part = back().first((64u << 10) * (1 + i % 7));
    ASSERT_EQ(read_now(store(), *open_.clock, slots[i], part).error.code, Code::ok);
    ASSERT_TRUE(holds(part, i)) << i;
  }
}

TEST_F(EncryptedStore, in_a_forked_child_it_is_forgotten) {
  const Slot slot = filled(1);
  const pid_t child = ::fork();
  if (child == 0) {
    store().abandon();
    const bool refused = !store().read(0, slot, back(), 1) && !store().reserve(4096) &&
                         store().poll(0, {}) == 0;
    open_.store.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_now(store(), *open_.clock, slot, back()).error.code, Code::ok);
  EXPECT_TRUE(holds(back(), 1));
}

}  // namespace
}  // namespace firn::testing_store
