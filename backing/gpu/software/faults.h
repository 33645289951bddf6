// Errors on demand: by call number or by rate, per entry. Owns its rules and their random numbers.
// Lock: Gpu::mutex.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"

namespace firn::software {

class Faults {
 public:
  /// The nth next call of `entry` ("*": any) answers `error`; nth == 0 forgets entry's rules.
  void fail_at(const std::string& entry, uint64_t nth, CUresult error);
  void fail_rate(const std::string& entry, double rate, uint64_t seed, CUresult error);
  /// Counts the call; the error it must answer, or CUDA_SUCCESS.
  CUresult next(const char* entry);
  uint64_t calls() const { return calls_; }
  /// As fail_at(), and every call of `entry` after that one, too.
  void fail_from(const std::string& entry, uint64_t nth, CUresult error);
  /// After so many more calls the contexts end with `error`; due() answers it once, then.
  void die_after(uint64_t calls, CUresult error) {
    dies_at_ = calls_ + calls;
    dies_of_ = calls ? error : CUDA_SUCCESS;
  }
  CUresult due() {
    return dies_of_ != CUDA_SUCCESS && calls_ >= dies_at_ ? std::exchange(dies_of_, CUDA_SUCCESS)
                                                          : CUDA_SUCCESS;
  }
  void clear() { *this = {}; }
  /// "cuMemMap:3:2,*:100+:999": entry, nth (and from then on), error. False when it is not of that
  /// form.
  bool parse(const std::string& words);

 private:
  struct Rule {
    std::string entry{};
    uint64_t countdown = 0;  // 0: a rate rule
    double rate = 0;
    uint64_t random = 0;
    bool lasting = false;    // from the countdown's end on
    CUresult error = CUDA_SUCCESS;
  };
  std::vector<Rule> rules_;
  uint64_t calls_ = 0;
  uint64_t dies_at_ = 0;
  CUresult dies_of_ = CUDA_SUCCESS;
};

}  // namespace firn::software
