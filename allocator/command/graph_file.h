// Graphs of `firn order`: PREFIX.storages.csv with the columns storage, bytes and kind,
// PREFIX.ops.csv with op, name, inputs, outputs and mutates.
// Owns: what was read. Locks: none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator/order/order.h"
#include "allocator/simulate/csv_file.h"
#include "firn/result.h"

namespace firn::command {

class GraphFile {
 public:
  static constexpr size_t rows_most = 5'000'000;        // of each file
  static constexpr uint64_t named_most = 200'000'000;   // storages, by all operators together

  /// Errors begin with "FILE:LINE: ", or "FILE: " where no line is to blame.
  static Result<GraphFile> read(const std::string& prefix);

  std::span<const order::Storage> storages() const { return storages_; }
  std::span<const order::Op> ops() const { return ops_; }
  /// The contents of OUT.order.csv and OUT.layout.csv.
  std::string order_text(std::span<const uint32_t> ops) const;
  std::string layout_text(std::span<const uint64_t> offsets) const;

 private:
  Result<void> read_storages();
  Result<void> read_storage(const simulate::CsvFile& file);
  Result<void> read_ops();
  Result<void> read_op(const simulate::CsvFile& file);
  Result<void> read_list(const simulate::CsvFile& file, size_t column, std::vector<uint32_t>& to);
  Result<void> examine() const;
  std::string in_a_cycle(std::span<const uint32_t> cycle) const;
  Error wrong(const std::string& path, size_t row, const std::string& text) const;

  std::string storages_path_, ops_path_;
  std::vector<order::Storage> storages_;
  std::vector<order::Op> ops_;
  std::vector<std::string> storage_ids_, op_ids_;
  std::unordered_map<std::string, uint32_t> storage_numbers_, op_numbers_;  // by id
  uint64_t named_ = 0;
};

}  // namespace firn::command
