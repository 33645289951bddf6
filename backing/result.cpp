// Words for errors. Owns nothing.
#include "firn/result.h"

#include <cstring>

namespace firn {

const char* code_name(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid_argument: return "invalid argument";
    case Code::out_of_memory: return "out of memory";
    case Code::host_out_of_memory: return "out of host memory";
    case Code::driver: return "driver error";
    case Code::io: return "I/O error";
    case Code::no_space: return "no space";
    case Code::corrupt: return "corrupt";
    case Code::not_supported: return "not supported";
    case Code::cancelled: return "cancelled";
    case Code::busy: return "busy";
    case Code::lost: return "lost";
  }
  return "unknown";
}

std::string describe(const Error& error) {
  const char* file = std::strrchr(error.where.file_name(), '/');
  std::string out = error.text + " (" + code_name(error.code);
  if (error.detail != 0) out += " " + std::to_string(error.detail);
  out += std::string(", ") + (file ? file + 1 : error.where.file_name()) + ":" +
         std::to_string(error.where.line()) + ")";
  return out;
}

}  // namespace firn
