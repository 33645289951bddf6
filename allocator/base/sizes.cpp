#include "allocator/base/sizes.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace firn {

namespace {

__extension__ typedef unsigned __int128 Wide;

struct Unit {
  std::string_view name;
  uint64_t bytes;
};
// Binary units, largest first, then decimal ones and plain bytes. A single letter is binary, as in
// most programs. Case does not matter.
constexpr Unit units[] = {
    {"TiB", 1ull << 40},
    {"GiB", 1ull << 30},
    {"MiB", 1ull << 20},
    {"KiB", 1ull << 10},
    {"T", 1ull << 40},
    {"G", 1ull << 30},
    {"M", 1ull << 20},
    {"K", 1ull << 10},
    {"TB", 1000ull * 1000 * 1000 * 1000},
    {"GB", 1000ull * 1000 * 1000},
    {"MB", 1000ull * 1000},
    {"KB", 1000},
    {"B", 1},
    {"", 1},
};
constexpr size_t binary_units = 4;

bool same_letters(std::string_view a, std::string_view b) {
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return small(x) == small(y); });
}

}  // namespace

Result<uint64_t> parse_size(std::string_view word) {
  constexpr const char* advice = "; write 20GiB, 512MiB, 1.5GB or plain bytes";
  const auto trouble = [&](const std::string& what) {
    return invalid(quote_word(word) + " " + what);
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (word.empty()) return trouble(std::string("is empty") + advice);
  if (word.front() == '-') return trouble("is negative");

  // A decimal number, exactly: mantissa / scale, both whole.
  Wide mantissa = 0, scale = 1;
  size_t i = 0, digits = 0;
  for (bool fraction = false; i < word.size(); ++i) {
    if (word[i] == '.' && !fraction) {
      fraction = true;
      continue;
    }
    if (!is_digit(word[i])) break;
    if (++digits > 24) return trouble("has too many digits");
    mantissa = mantissa * 10 + static_cast<unsigned>(word[i] - '0');
    if (fraction) scale *= 10;
  }
  if (!is_digit(word.front()) || word[i - 1] == '.')
    return trouble(std::string("is not a size") + advice);
  const size_t letters = i + (i + 1 < word.size() && word[i] == ' ');  // "8 GiB"
  const std::string_view suffix = word.substr(letters);
  const Unit* unit = std::find_if(std::begin(units), std::end(units), [&](const Unit& each) {
    return same_letters(each.name, suffix);
  });
  if (unit == std::end(units))
    return trouble("has the unknown unit " + quote_word(suffix) + advice);
  // Whole and fractional part apart, so that neither product exceeds 128 bits.
  const Wide whole = mantissa / scale, rest = mantissa % scale;
  if (whole > UINT64_MAX / unit->bytes) return trouble("exceeds 64 bits");
  const Wide bytes = whole * unit->bytes + rest * unit->bytes / scale;
  if (bytes > UINT64_MAX) return trouble("exceeds 64 bits");
  if (bytes == 0) return trouble("is 0 bytes");
  return static_cast<uint64_t>(bytes);
}

std::string format_size(uint64_t bytes) {
  for (size_t i = 0; i < binary_units; ++i) {
    const Unit& unit = units[i];
    if (bytes < unit.bytes) continue;
    if (bytes % unit.bytes == 0) return std::to_string(bytes / unit.bytes).append(unit.name);
    std::array<char, 32> text;
    std::snprintf(text.data(), text.size(), "%.2f",
                  static_cast<double>(bytes) / static_cast<double>(unit.bytes));
    return std::string(text.data()).append(unit.name);
  }
  return std::to_string(bytes);
}

std::string exact_size(uint64_t bytes) {
  if (bytes == 0) return {};
  for (size_t i = 0; i < binary_units; ++i)
    if (bytes % units[i].bytes == 0)
      return std::to_string(bytes / units[i].bytes).append(units[i].name);
  return std::to_string(bytes);
}

std::string quote_word(std::string_view word) {
  constexpr size_t length_max = 80;
  std::string text = "\"";
  for (const char c : word.substr(0, length_max)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      text += c;
      continue;
    }
    std::array<char, 8> escaped;
    std::snprintf(escaped.data(), escaped.size(), "\\x%02x", static_cast<unsigned>(byte));
    text += escaped.data();
  }
  return text + (word.size() > length_max ? "...\"" : "\"");
}

}  // namespace firn
