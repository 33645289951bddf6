// The channels that bytes move through.
#pragma once

#include <cstddef>
#include <cstdint>

namespace firn::lifetimes {

/// Device to host memory, back; host memory to the store, back.
enum class Channel : uint8_t { host_out, host_in, store_write, store_read };
inline constexpr size_t channel_count = 4;

}  // namespace firn::lifetimes
