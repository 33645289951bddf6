// Opening a store: directories checked, the kind of I/O chosen by trial. And the Store seam over
// FileStoreCore, which a forked child can abandon. Owns: the core. Locks: none of its own.
#include <fmt/format.h>

#include "backing/store/cipher_store.h"
#include "backing/store/file_store.h"
#include "backing/store/paced_store.h"
#include "backing/store/ring_loop.h"

namespace firn {

// A busy kernel (6.18) was seen to leave a request without a worker and without an answer, once in
// some ten thousand: a new trial, on another ring, gets one.
constexpr int ring_trials = 3;

namespace {

class FileStore final : public Store {
 public:
  explicit FileStore(std::unique_ptr<FileStoreCore> core) : core_(core.release()) {}
  ~FileStore() override { delete core_; }

  Result<void> attach_staging(std::span<std::byte> staging) override {
    return core_ ? core_->attach_staging(staging) : abandoned();
  }
  void detach_staging(std::span<std::byte> staging) override {
    if (core_) core_->detach_staging(staging);
  }
  Result<Slot> reserve(size_t bytes, bool wait) override {
    if (!core_) return abandoned().error();
    return core_->reserve(bytes, wait);
  }
  Result<void> write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                     uint64_t tag) override {
    if (!core_) return abandoned();
    return core_->submit(StoreCompletion::Kind::write, queue, slot,
                         const_cast<std::byte*>(bytes.data()), bytes.size(), tag);
  }
  Result<void> read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) override {
    if (!core_) return abandoned();
    return core_->submit(StoreCompletion::Kind::read, queue, slot, bytes.data(), bytes.size(), tag);
  }
  bool cancel(unsigned queue, uint64_t tag) override { return core_ && core_->cancel(queue, tag); }
  void discard(Slot slot) override {
    if (core_) core_->discard(slot);
  }
  std::optional<bool> holds(Slot slot, std::span<const std::byte> bytes) const override {
    return core_ ? core_->holds(slot, bytes) : std::nullopt;
  }
  size_t poll(unsigned queue, std::span<StoreCompletion> out) override {
    return core_ ? core_->poll(queue, out) : 0;
  }
  StoreStats stats() const override {
    if (core_) return core_->stats();
    StoreStats stats;
    stats.kind = "abandoned";
    return stats;
  }
  /// Locks may be held by threads that the child does not have, so that nothing is called.
  void abandon() override {
    forgotten_ = core_;
    core_ = nullptr;
  }

 private:
  static Result<void> abandoned() {
    return make_error(Code::not_supported, 0, "the parent process opened the store before fork");
  }

  FileStoreCore* core_;                 // owned
  FileStoreCore* forgotten_ = nullptr;  // the parent's; leaked on purpose
};

Result<void> check_options(const StoreOptions& options) {
  if (options.dirs.empty()) return invalid("firn_dir: name at least one directory");
  if (options.request_bytes == 0 || options.request_bytes % store_alignment != 0 ||
      options.request_bytes > (size_t{1} << 30))
    return invalid(fmt::format("request_bytes {} must be a multiple of {} up to 1 GiB",
                               options.request_bytes, store_alignment));
  if (options.depth == 0 || options.depth > 4096)
    return invalid(fmt::format("firn_depth: {} must be between 1 and 4096", options.depth));
  if (options.threads == 0 || options.threads > 256)
    return invalid(fmt::format("threads {} must be between 1 and 256", options.threads));
  if (options.grow_bytes == 0 || options.grow_bytes % store_alignment != 0)
    return invalid(
        fmt::format("grow_bytes {} must be a multiple of {}", options.grow_bytes, store_alignment));
  return {};
}

}  // namespace

Result<std::unique_ptr<Store>> open_file_store(const StoreOptions& options, FileCalls& calls) {
  Result<void> checked = check_options(options);
  if (!checked) return checked.error();
  std::vector<SpillFile> files;
  bool ring = options.kind != StoreOptions::Kind::threads;
  std::string why;
  auto add = [&](const std::string& words) {
    if (!words.empty()) why += (why.empty() ? "" : "; ") + words;
  };
  for (const std::string& dir : options.dirs) {
    Result<SpillFile> file = SpillFile::open(dir, options.allow_tmpfs, calls);
    if (!file) return file.error();
    if (ring) {
      std::string trouble = no_answer();
      for (int i = 0; i < ring_trials; ++i) {
        if (std::optional<std::string> told = ring_trial(file->direct_fd())) {
          trouble = *told;
          break;
        }
        file = SpillFile::open(dir, options.allow_tmpfs, calls);  // the kernel may use the old one
        if (!file) return file.error();
      }
      int emptied = calls.ftruncate(file->direct_fd(), 0);
      if (emptied < 0)
        return make_error(Code::invalid_argument, -emptied,
                          fmt::format("firn_dir: {}: ftruncate: {}", dir, errno_words(-emptied)));
      if (!trouble.empty() && options.kind == StoreOptions::Kind::io_uring)
        return make_error(
            Code::not_supported, 0,
            fmt::format("firn_store: io_uring does not work for {}: {}", dir, trouble));
      if (!trouble.empty()) {
        ring = false;
        add(fmt::format("threads instead of io_uring: {}", trouble));
      }
    }
    files.push_back(std::move(*file));
  }
  std::unique_ptr<Store> store(new FileStore(
      std::make_unique<FileStoreCore>(options, calls, std::move(files), ring, std::move(why))));
  if (options.pace)
    store = std::make_unique<PacedStore>(std::move(store), options.pace,
                                         options.clock ? *options.clock : wall_clock());
  if (options.encrypt)
    return encrypted(std::move(store), options.clock ? *options.clock : wall_clock());
  return store;
}

Result<std::unique_ptr<Store>> open_store(const StoreOptions& options) {
  return open_file_store(options, FileCalls::real());
}

}  // namespace firn
