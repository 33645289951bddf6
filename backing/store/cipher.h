// AES-256-GCM (NIST SP 800-38D) for bytes that go to disks, by OpenSSL's libcrypto, which is loaded
// only when it is wanted.
//
// The key is the process's own, drawn when the cipher is made, and never leaves it: it lies in a
// page that is locked, in no core dump and zero in a forked child, and is wiped at the end. (OpenSSL
// keeps the round keys in ordinary memory while a call lasts, and wipes them at its end.) A nonce is
// a number that counts encryptions under the key, so that none repeats.
//
// At the process's end libcrypto frees what its calls use: that waits for calls under way, and none
// begins afterwards.
//
// Owns the key. Locks: none; any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "firn/result.h"
#include "firn/sum.h"

namespace firn {

/// Decryption needs it beside the key. Not secret; not to be changed by others.
struct Seal {
  uint64_t nonce = 0;
  std::array<unsigned char, 16> tag{};
  Sum sum;  // of the plain bytes
};

class Cipher {
 public:
  /// Errors: not_supported: no libcrypto (names of OpenSSL 3 and 1.1 are tried, or `library`), or no
  /// key is to be had. In words that name firn_encrypt.
  static Result<std::unique_ptr<Cipher>> create(const char* library = nullptr);
  ~Cipher();
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  /// Into `to`, which has as many bytes and does not overlap them. Errors: io (libcrypto refused,
  /// for want of memory or because the process ends).
  Result<Seal> encrypt(std::span<const std::byte> plain, std::byte* to);
  /// In place. Errors, after which the bytes are of no use: corrupt (these are not the bytes that
  /// were sealed so), io (as above: it tells nothing of them).
  Result<void> decrypt(std::span<std::byte> bytes, const Seal& seal) const;

  /// Why the key might reach a disk (memory that could not be locked); empty: it cannot.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Library;
  explicit Cipher(const Library& library) : library_(library) {}
  Result<void> draw_key();

  const Library& library_;
  unsigned char* key_ = nullptr;  // a page of its own
  std::atomic<uint64_t> nonces_{0};
  std::string trouble_;
};

}  // namespace firn
