#include "backing/store/cipher.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace firn::testing_store {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::unique_ptr<Cipher> made() {
  auto cipher = Cipher::create();
  EXPECT_TRUE(cipher) << cipher.error().text;
  return cipher ? std::move(*cipher) : nullptr;
}

TEST(Cipher, gives_back_what_it_took) {
  const auto cipher = made();
  ASSERT_TRUE(cipher);
  for (const size_t bytes : {size_t{1}, size_t{4096}, (size_t{256} << 10) + 4096, size_t{3} << 20}) {
    const Bytes plain = random_bytes(bytes, bytes);
    Bytes hidden(bytes);
    auto seal = cipher->encrypt(plain, hidden.data());
    ASSERT_TRUE(seal) << seal.error().text;
    EXPECT_NE(hidden, plain);
    EXPECT_EQ(seal->sum, sum_of(plain.data(), plain.size()));
    EXPECT_TRUE(cipher->decrypt(hidden, *seal));
    EXPECT_EQ(hidden, plain);
  }
}

TEST(Cipher, looks_like_noise_and_never_the_same) {
  const auto cipher = made();
  ASSERT_TRUE(cipher);
  const Bytes plain(4096);  // zeroes
  std::set<Bytes> all;
  std::set<uint64_t> nonces;
  std::array<unsigned, 256> counts{};
  for (int i = 0; i < 1'000; ++i) {
    Bytes hidden(plain.size());
    auto seal = cipher->encrypt(plain, hidden.data());
    ASSERT_TRUE(seal);
    for (const std::byte byte : hidden) ++counts[static_cast<unsigned>(byte)];
    nonces.insert(seal->nonce);
    all.insert(std::move(hidden));
  }
  EXPECT_EQ(all.size(), 1'000u);
  EXPECT_EQ(nonces.size(), 1'000u);
  // 16,000 of each, with a standard deviation of 126: these bounds are eight of them away.
  EXPECT_GT(*std::min_element(counts.begin(), counts.end()), 15'000u);
  EXPECT_LT(*std::max_element(counts.begin(), counts.end()), 17'000u);
}

TEST(Cipher, two_have_two_keys) {
  const auto one = made(), other = made();
  ASSERT_TRUE(one && other);
  const Bytes plain = random_bytes(4096, 1);
  Bytes hidden(plain.size());
  auto seal = one->encrypt(plain, hidden.data());
  ASSERT_TRUE(seal);
  Bytes again = hidden;
  EXPECT_FALSE(other->decrypt(again, *seal));
  EXPECT_TRUE(one->decrypt(hidden, *seal));
}

TEST(Cipher, tells_every_change) {
  const auto cipher = made();
  ASSERT_TRUE(cipher);
  const Bytes plain = random_bytes(512, 2);
  Bytes hidden(plain.size());
  auto seal = cipher->encrypt(plain, hidden.data());
  ASSERT_TRUE(seal);
  for (size_t bit = 0; bit < hidden.size() * 8; ++bit) {
    Bytes changed = hidden;
    changed[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    ASSERT_FALSE(cipher->decrypt(changed, *seal)) << "bit " << bit;
  }
  for (size_t bit = 0; bit < seal->tag.size() * 8; ++bit) {
    Seal changed = *seal;
    changed.tag[bit / 8] = static_cast<unsigned char>(changed.tag[bit / 8] ^ (1u << bit % 8));
    Bytes bytes = hidden;
    ASSERT_FALSE(cipher->decrypt(bytes, changed)) << "bit " << bit << " of the tag";
  }
  Seal other = *seal;
  ++other.nonce;
  Bytes bytes = hidden;
  EXPECT_FALSE(cipher->decrypt(bytes, other));
}

/// Pages that are locked, in no core dump and zero in a child, by the kernel's own words.
size_t key_pages() {
  std::ifstream maps("/proc/self/smaps");
  size_t pages = 0, kib = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.rfind("Size:", 0) == 0) kib = std::stoul(line.substr(5));
    if (line.rfind("VmFlags:", 0) != 0) continue;
    const auto has = [&line](const char* flag) { return line.find(flag) != std::string::npos; };
    if (has(" lo") && has(" dd") && has(" wf")) pages += kib / 4;
  }
  return pages;
}

TEST(Cipher, its_key_lies_apart) {
  const size_t before = key_pages();
  {
    const auto one = made(), other = made();
    ASSERT_TRUE(one && other);
    if (!one->trouble().empty()) GTEST_SKIP() << one->trouble();
    EXPECT_EQ(key_pages(), before + 2);
  }
  EXPECT_EQ(key_pages(), before);
}

/// libcrypto's memory, of which there is none where a test says so.
struct Memory {
  static void* take(size_t bytes, const char*, int) { return none ? nullptr : std::malloc(bytes); }
  static void* change(void* old, size_t bytes, const char*, int) {
    return none ? nullptr : std::realloc(old, bytes);
  }
  static void give(void* old, const char*, int) { std::free(old); }
  Memory() {  // before its first use
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"})
      if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
        const auto set = reinterpret_cast<int (*)(decltype(&take), decltype(&change),
                                                  decltype(&give))>(
            ::dlsym(handle, "CRYPTO_set_mem_functions"));
        ours = set && set(take, change, give) == 1;
        return;
      }
  }
  static inline bool none = false;
  bool ours = false;
} memory;

TEST(Cipher, refused_is_not_wrong) {  // what is wrong is lost for good
  ASSERT_TRUE(memory.ours);
  const auto cipher = made();
  ASSERT_TRUE(cipher);
  const Bytes plain = random_bytes(4096, 3);
  Bytes hidden(plain.size());
  auto seal = cipher->encrypt(plain, hidden.data());
  ASSERT_TRUE(seal);
  memory.none = true;
  Bytes other(plain.size());
  const auto encrypted = cipher->encrypt(plain, other.data());
  const auto decrypted = cipher->decrypt(hidden, *seal);
  memory.none = false;
  ASSERT_FALSE(encrypted);
  EXPECT_EQ(encrypted.error().code, Code::io);
  ASSERT_FALSE(decrypted);
  EXPECT_EQ(decrypted.error().code, Code::io);
  hidden[0] ^= std::byte{1};
  EXPECT_EQ(cipher->decrypt(hidden, *seal).error().code, Code::corrupt);
}

/// libcrypto gives up what its calls use when the process ends, whoever is in one.
TEST(Cipher, the_process_may_end_in_the_middle) {
  for (int i = 0; i < 40; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto cipher = made().release();
      for (int thread = 0; thread < 4; ++thread)
        std::thread([cipher] {
          const Bytes plain(4096);
          Bytes hidden(plain.size());
          for (;;) {
            const auto seal = cipher->encrypt(plain, hidden.data());
            const auto back = seal ? cipher->decrypt(hidden, *seal) : Result<void>();
            if (!back && back.error().code == Code::corrupt) ::_exit(3);
          }
        }).detach();
      ::usleep(static_cast<useconds_t>(3'000 + 100 * i));
      std::exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "signal " << WTERMSIG(status);
  }
}

TEST(Cipher, a_child_of_a_process_that_encrypts_ends) {  // and waits for no thread of its parent's
  const auto cipher = made();
  ASSERT_TRUE(cipher);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    const Bytes plain(4u << 20);
    Bytes hidden(plain.size());
    while (!stop) (void)cipher->encrypt(plain, hidden.data());
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      std::exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "signal " << WTERMSIG(status);
  }
  stop = true;
  other.join();
}

TEST(Cipher, without_its_library_it_says_so) {
  auto cipher = Cipher::create("libcrypto.so.nonexistent");
  ASSERT_FALSE(cipher);
  EXPECT_EQ(cipher.error().code, Code::not_supported);
  EXPECT_NE(cipher.error().text.find("firn_encrypt"), std::string::npos);
  EXPECT_NE(cipher.error().text.find("libssl3"), std::string::npos);
  auto other = Cipher::create("libm.so.6");  // has none of it
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().text.find("AES-256-GCM"), std::string::npos) << other.error().text;
}

}  // namespace
}  // namespace firn::testing_store
