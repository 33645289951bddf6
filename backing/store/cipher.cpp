#include "backing/store/cipher.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "backing/store/sum.h"
#include "firn/system_page.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace firn {

namespace {
constexpr size_t key_bytes = 32, nonce_bytes = 12;
constexpr size_t step_bytes = 256u << 10;  // in the second-level cache for the sum, too
// From OpenSSL's <openssl/evp.h>; part of its stable interface.
constexpr int ctrl_get_tag = 0x10, ctrl_set_tag = 0x11;
constexpr const char* libraries[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

std::array<unsigned char, nonce_bytes> iv_of(uint64_t nonce) {
  std::array<unsigned char, nonce_bytes> iv{'F', 'I', 'R', 'N'};
  memcpy(iv.data() + 4, &nonce, sizeof nonce);
  return iv;
}

// Operations under way, and whether libcrypto has begun to free what they use (the process ends).
std::atomic<int> under_way{0};
std::atomic<bool> ended{false};
std::atomic<pid_t> process{0};  // theirs: a forked child has none of their threads

void wait_for_operations() {
  constexpr useconds_t look_us = 100;
  ended = true;
  while (under_way > 0 && process == ::getpid()) ::usleep(look_us);
}

Error refused(const char* what) {
  return make_error(Code::io, 0, fmt::format("firn_encrypt: libcrypto refused to {}", what));
}
}  // namespace

struct Cipher::Library {
  struct Context;  // EVP_CIPHER_CTX
  Context* (*context_new)();
  void (*context_free)(Context*);
  const void* (*aes_256_gcm)();
  int (*encrypt_init)(Context*, const void* type, void* engine, const unsigned char* key,
                      const unsigned char* iv);
  int (*encrypt_update)(Context*, unsigned char* out, int* out_bytes, const unsigned char* in,
                        int in_bytes);
  int (*encrypt_final)(Context*, unsigned char* out, int* out_bytes);
  int (*decrypt_init)(Context*, const void* type, void* engine, const unsigned char* key,
                      const unsigned char* iv);
  int (*decrypt_update)(Context*, unsigned char* out, int* out_bytes, const unsigned char* in,
                        int in_bytes);
  int (*decrypt_final)(Context*, unsigned char* out, int* out_bytes);
  int (*control)(Context*, int type, int argument, void* pointer);
  int (*at_its_end)(void (*handler)());

  /// An operation's context, wiped at its end; null where none can be had.
  struct Operation {
    const Library& library;
    Context* context = nullptr;
    bool counted = false;
    explicit Operation(const Library& used) : library(used) {
      if (ended) return;
      ++under_way;
      counted = true;
      if (!ended) context = library.context_new();
    }
    ~Operation() {
      if (context) library.context_free(context);
      if (counted) --under_way;
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
  };

  bool load(void* handle) {
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          ::dlsym(handle, name));
      return function != nullptr;
    };
    return find(context_new, "EVP_CIPHER_CTX_new") && find(context_free, "EVP_CIPHER_CTX_free") &&
           find(aes_256_gcm, "EVP_aes_256_gcm") && find(encrypt_init, "EVP_EncryptInit_ex") &&
           find(encrypt_update, "EVP_EncryptUpdate") &&
           find(encrypt_final, "EVP_EncryptFinal_ex") &&
           find(decrypt_init, "EVP_DecryptInit_ex") &&
           find(decrypt_update, "EVP_DecryptUpdate") &&
           find(decrypt_final, "EVP_DecryptFinal_ex") && find(control, "EVP_CIPHER_CTX_ctrl") &&
           find(at_its_end, "OPENSSL_atexit");
  }
};

Result<std::unique_ptr<Cipher>> Cipher::create(const char* library) {
  std::string tried;
  void* handle = nullptr;
  for (const char* name : libraries) {
    handle = ::dlopen(library ? library : name, RTLD_NOW | RTLD_LOCAL);
    if (handle) break;
    const char* why = ::dlerror();
    tried += (tried.empty() ? "" : "; ") + std::string(why ? why : "no reason");
    if (library) break;
  }
  if (!handle)
    return make_error(Code::not_supported, 0,
                      fmt::format("firn_encrypt: OpenSSL's libcrypto is needed (Debian: libssl3): "
                                  "{}", tried));
  auto found = std::make_unique<Library>();
  if (!found->load(handle))
    return make_error(Code::not_supported, 0,
                      "firn_encrypt: libcrypto lacks the AES-256-GCM of OpenSSL 1.1 and 3");
  if (process != ::getpid()) {
    under_way = 0;  // as of threads that a parent had
    process = ::getpid();
  }
  if (found->at_its_end(wait_for_operations) != 1)
    return make_error(Code::not_supported, 0,
                      "firn_encrypt: libcrypto refused OPENSSL_atexit, so that it could end in the "
                      "middle of an operation");
  std::unique_ptr<Cipher> made(new Cipher(*found.release()));  // as the library: to the end
  if (Result<void> drawn = made->draw_key(); !drawn) return drawn.error();
  return made;
}

Result<void> Cipher::draw_key() {
  const size_t bytes = system_page_bytes();
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
  if (page == MAP_FAILED)
    return make_error(Code::host_out_of_memory, errno,
                      fmt::format("firn_encrypt: cannot allocate a page for the key: {}",
                                  ::strerror(errno)));
  key_ = static_cast<unsigned char*>(page);
  const auto may_leave = [this](const char* call) {
    trouble_ += fmt::format("{}cannot protect the key's page: {}: {}",
                            trouble_.empty() ? "" : "; ", call, ::strerror(errno));
  };
  if (::mlock(page, bytes) != 0) may_leave("mlock");
  if (::madvise(page, bytes, MADV_DONTDUMP) != 0) may_leave("MADV_DONTDUMP");
  if (::madvise(page, bytes, MADV_WIPEONFORK) != 0 &&
      ::madvise(page, bytes, MADV_DONTFORK) != 0)
    may_leave("MADV_WIPEONFORK");
  for (size_t got = 0; got < key_bytes;) {
    const ssize_t more = ::getrandom(key_ + got, key_bytes - got, 0);
    if (more < 0 && errno != EINTR)
      return make_error(Code::not_supported, errno,
                        fmt::format("firn_encrypt: getrandom: {}", ::strerror(errno)));
    got += static_cast<size_t>(std::max<ssize_t>(more, 0));
  }
  return {};
}

Cipher::~Cipher() {
  if (!key_) return;
  ::explicit_bzero(key_, system_page_bytes());
  (void)::munmap(key_, system_page_bytes());
}

Result<Seal> Cipher::encrypt(std::span<const std::byte> plain, std::byte* to) {
  Seal seal;
  seal.nonce = nonces_.fetch_add(1, std::memory_order_relaxed);
  const auto iv = iv_of(seal.nonce);
  Library::Operation operation{library_};
  bool fine = operation.context &&
              library_.encrypt_init(operation.context, library_.aes_256_gcm(), nullptr, key_,
                                    iv.data()) == 1;
  Summer summer;
  int moved = 0;
  for (size_t at = 0; fine && at < plain.size(); at += step_bytes) {
    const size_t bytes = std::min(step_bytes, plain.size() - at);
    summer.sum_to(plain.data(), at + bytes);
    fine = library_.encrypt_update(operation.context, reinterpret_cast<unsigned char*>(to + at),
                                   &moved, reinterpret_cast<const unsigned char*>(&plain[at]),
                                   static_cast<int>(bytes)) == 1;
  }
  unsigned char none[16];
  fine = fine && library_.encrypt_final(operation.context, none, &moved) == 1 &&
         library_.control(operation.context, ctrl_get_tag, static_cast<int>(seal.tag.size()),
                          seal.tag.data()) == 1;
  if (!fine) return refused("encrypt");
  seal.sum = summer.digest();
  return seal;
}

Result<void> Cipher::decrypt(std::span<std::byte> bytes, const Seal& seal) const {
  const auto iv = iv_of(seal.nonce);
  Library::Operation operation{library_};
  if (!operation.context || library_.decrypt_init(operation.context, library_.aes_256_gcm(),
                                                  nullptr, key_, iv.data()) != 1)
    return refused("decrypt");
  int moved = 0;
  for (size_t at = 0; at < bytes.size(); at += step_bytes) {
    auto* part = reinterpret_cast<unsigned char*>(&bytes[at]);
    if (library_.decrypt_update(operation.context, part, &moved, part,
                                static_cast<int>(std::min(step_bytes, bytes.size() - at))) != 1)
      return refused("decrypt");
  }
  auto tag = seal.tag;
  unsigned char none[16];
  if (library_.control(operation.context, ctrl_set_tag, static_cast<int>(tag.size()),
                       tag.data()) != 1)
    return refused("decrypt");
  if (library_.decrypt_final(operation.context, none, &moved) != 1)
    return make_error(Code::corrupt, 0, "the bytes differ from those that were encrypted");
  return {};
}

}  // namespace firn
