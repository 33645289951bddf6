// Instances of `firn layout`: CSV files with the columns id, lower, upper and size.
// Owns: what was read. Locks: none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/layout/layout.h"
#include "firn/result.h"

namespace firn::command {

class LayoutFile {
 public:
  static constexpr size_t buffers_most = 20'000'000;

  /// Errors begin with "FILE:LINE: ", or "FILE: " where no line is to blame.
  static Result<LayoutFile> read(const std::string& path);

  std::span<const layout::Buffer> buffers() const { return buffers_; }
  const layout::Load& load() const { return load_; }
  std::string_view id(size_t buffer) const;
  /// "FILE:LINE", of a buffer.
  std::string file_and_line(size_t buffer) const;
  /// The instance as it was read, with the column `offset`.
  std::string with_offsets(std::span<const uint64_t> offsets) const;

 private:
  Result<void> check_ids() const;
  Result<void> examine();
  Error wrong(size_t buffer, const std::string& text) const;

  std::string path_;
  std::vector<size_t> order_;        // of id, lower, upper, size in the header, left to right
  std::vector<layout::Buffer> buffers_;
  std::string ids_;                  // one after the other
  std::vector<size_t> id_ends_;      // in ids_
  layout::Load load_;
};

}  // namespace firn::command
