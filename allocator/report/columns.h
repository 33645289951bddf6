// Columns of numbers for the page: named, typed like JavaScript's typed arrays, concatenated in one
// string of bytes. Times are stored as differences, which deflate well.
// Owns: the bytes. Locks: none.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

namespace firn::report {

class Columns {
 public:
  template <class List, class Value>
  void u8(const char* name, const List& list, Value&& value) {
    add<uint8_t>(name, "u8", list, value);
  }
  template <class List, class Value>
  void u32(const char* name, const List& list, Value&& value) {
    add<uint32_t>(name, "u32", list, value);
  }
  template <class List, class Value>
  void f64(const char* name, const List& list, Value&& value) {
    add<double>(name, "f64", list, value);
  }
  /// Differences, modulo 2^32, which the page adds up again.
  template <class List, class Value>
  void steps(const char* name, const List& list, Value&& value) {
    uint32_t before = 0;
    add<uint32_t>(name, "steps", list, [&](const auto& each) {
      const auto now = static_cast<uint32_t>(value(each));
      return now - std::exchange(before, now);
    });
  }

  /// [{"name", "type", "at", "count"}]; `at` is a multiple of 8.
  const nlohmann::ordered_json& table() const { return table_; }
  const std::string& bytes() const { return bytes_; }

 private:
  template <class Number, class List, class Value>
  void add(const char* name, const char* type, const List& list, Value&& value) {
    bytes_.resize((bytes_.size() + 7) / 8 * 8);
    const size_t at = bytes_.size();
    bytes_.resize(at + list.size() * sizeof(Number));
    char* to = bytes_.data() + at;
    for (const auto& each : list) {
      const auto number = static_cast<Number>(value(each));
      std::memcpy(to, &number, sizeof number);
      to += sizeof number;
    }
    table_.push_back({{"name", name}, {"type", type}, {"at", at}, {"count", list.size()}});
  }

  nlohmann::ordered_json table_ = nlohmann::ordered_json::array();
  std::string bytes_;
};

}  // namespace firn::report
