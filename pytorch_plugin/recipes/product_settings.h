// torch's settings that the bits of products depend on: their precision, and which library runs
// them how. They are the process's. Not thread-safe beside a change of them, as torch's own.
#pragma once

#include <ATen/Context.h>

#include <array>
#include <cstdint>
#include <optional>

namespace firn::pytorch {

class ProductSettings {
 public:
  static constexpr unsigned bits = 16;  // of a number

  /// False: two runs of a product may differ, as cuDNN tries its algorithms while they run, or a
  /// setting is in force that is not put back: multiprocessors that products leave to others, or
  /// TF32 turned off for this thread alone.
  static bool are_steady();
  /// As a number below 2^bits.
  static uint64_t now();

  /// Puts those of that number in force, and the program's back at its end.
  explicit ProductSettings(uint64_t then);
  ~ProductSettings();
  ProductSettings(const ProductSettings&) = delete;
  ProductSettings& operator=(const ProductSettings&) = delete;

 private:
  static constexpr std::array ops{at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN};
  static void set(uint64_t settings);

  const uint64_t before_ = now();
  const bool benchmark_;
  // Of those that were changed. (NONE: the one above decides.)
  std::array<std::optional<at::Float32Precision>, ops.size()> precision_;
};

}  // namespace firn::pytorch
