// Reductions of every data type: see reduce.h.
#include "backing/gpu/software/nccl/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace firn::nccl {
namespace {

/// Sums of T are kept in it. Integers wrap, so they are added without a sign.
template <class T>
struct Kept {
  using type = float;
};
template <>
struct Kept<double> {
  using type = double;
};
template <class T>
  requires std::is_integral_v<T>
struct Kept<T> {
  using type = std::make_unsigned_t<T>;
};
template <class T>
using kept_t = typename Kept<T>::type;

template <class T>
T divided(T sum, size_t ranks) {
  return static_cast<T>(sum / static_cast<T>(ranks));
}

template <class T, class Start, class Next, class End>
void fold(const std::vector<const char*>& from, char* to, size_t count, Start&& start, Next&& next,
          End&& end) {
  std::vector<const T*> in;
  for (const char* each : from) in.push_back(reinterpret_cast<const T*>(each));
  T* const out = reinterpret_cast<T*>(to);
  for (size_t i = 0; i < count; ++i) {
    auto value = start(in[0][i]);
    for (size_t rank = 1; rank < in.size(); ++rank) value = next(value, in[rank][i]);
    out[i] = end(value);
  }
}

template <class T>
void reduce_of(const Reduction& reduction, const std::vector<const char*>& from, char* to,
               size_t count) {
  using K = kept_t<T>;
  const auto keep = [](T value) { return static_cast<K>(value); };
  const auto back = [](K value) { return static_cast<T>(value); };
  const auto plus = [&](K sum, T value) { return static_cast<K>(sum + keep(value)); };
  switch (reduction.op) {
    case ncclSum:
      return fold<T>(from, to, count, keep, plus, back);
    case ncclProd:
      return fold<T>(from, to, count, keep,
                     [&](K product, T value) { return static_cast<K>(product * keep(value)); },
                     back);
    case ncclMax:
      return fold<T>(from, to, count, [](T value) { return value; },
                     [](T most, T value) { return most < value ? value : most; },
                     [](T value) { return value; });
    case ncclMin:
      return fold<T>(from, to, count, [](T value) { return value; },
                     [](T least, T value) { return value < least ? value : least; },
                     [](T value) { return value; });
    case ncclAvg:
      if constexpr (std::is_integral_v<T>)
        return fold<T>(from, to, count, keep, plus,
                       [&](K sum) { return divided(back(sum), from.size()); });
      else
        return fold<T>(from, to, count, keep, plus,
                       [&](K sum) { return back(divided(sum, from.size())); });
    default: {
      T scalar;
      std::memcpy(&scalar, reduction.scalar, sizeof scalar);
      const auto scaled = [&](T value) { return static_cast<K>(keep(value) * keep(scalar)); };
      return fold<T>(from, to, count, scaled,
                     [&](K sum, T value) { return static_cast<K>(sum + scaled(value)); }, back);
    }
  }
}

}  // namespace

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 0;
  }
}

void reduce(const Reduction& reduction, const std::vector<const char*>& from, char* to,
            size_t count) {
  switch (reduction.type) {
    case ncclInt8: return reduce_of<int8_t>(reduction, from, to, count);
    case ncclUint8: return reduce_of<uint8_t>(reduction, from, to, count);
    case ncclInt32: return reduce_of<int32_t>(reduction, from, to, count);
    case ncclUint32: return reduce_of<uint32_t>(reduction, from, to, count);
    case ncclInt64: return reduce_of<int64_t>(reduction, from, to, count);
    case ncclUint64: return reduce_of<uint64_t>(reduction, from, to, count);
    case ncclFloat16: return reduce_of<c10::Half>(reduction, from, to, count);
    case ncclFloat32: return reduce_of<float>(reduction, from, to, count);
    case ncclFloat64: return reduce_of<double>(reduction, from, to, count);
    case ncclBfloat16: return reduce_of<c10::BFloat16>(reduction, from, to, count);
    case ncclFloat8e4m3: return reduce_of<c10::Float8_e4m3fn>(reduction, from, to, count);
    case ncclFloat8e5m2: return reduce_of<c10::Float8_e5m2>(reduction, from, to, count);
    default: return;
  }
}

}  // namespace firn::nccl
