// Locks: none.
#include "allocator/command/devices.h"

#include <array>

#include "firn/driver.h"

namespace firn::command {
namespace {

Result<DeviceReport> examine_device(const Driver& driver, int ordinal) {
  CUdevice device = 0;
  if (CUresult result = driver.device_get(&device, ordinal); result != CUDA_SUCCESS)
    return driver.error("cuDeviceGet", result);
  DeviceReport report;
  std::array<char, 256> name{};
  if (CUresult result =
          driver.device_get_name(name.data(), static_cast<int>(name.size()) - 1, device);
      result != CUDA_SUCCESS)
    return driver.error("cuDeviceGetName", result);
  report.name = name.data();
  size_t bytes = 0;
  if (CUresult result = driver.device_total_mem(&bytes, device); result != CUDA_SUCCESS)
    return driver.error("cuDeviceTotalMem", result);
  report.memory_bytes = bytes;
  std::array<char, 32> address{};
  if (driver.device_get_pci_bus_id(address.data(), static_cast<int>(address.size()) - 1, device) ==
      CUDA_SUCCESS)
    report.pci_address = address.data();
  int supported = 0;
  if (CUresult result = driver.device_get_attribute(
          &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
      result != CUDA_SUCCESS)
    return driver.error("cuDeviceGetAttribute", result);
  report.virtual_memory = supported != 0;
  return report;
}

}  // namespace

DriverReport examine_driver(const std::string& library) {
  DriverReport report;
  report.library = library.empty() ? "libcuda.so.1" : library;
  Result<std::unique_ptr<Driver>> opened = open_driver(library);
  if (!opened) {
    report.why = opened.error().text;
    return report;
  }
  const Driver& driver = **opened;
  report.library = driver.library;
  report.software = driver.software;
  if (CUresult result = driver.init(0); result != CUDA_SUCCESS) {
    report.why = driver.error("cuInit", result).text;
    return report;
  }
  if (CUresult result = driver.driver_get_version(&report.version); result != CUDA_SUCCESS) {
    report.why = driver.error("cuDriverGetVersion", result).text;
    return report;
  }
  int count = 0;
  if (CUresult result = driver.device_get_count(&count); result != CUDA_SUCCESS) {
    report.why = driver.error("cuDeviceGetCount", result).text;
    return report;
  }
  if (count == 0) report.why = "the driver has no device";
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Result<DeviceReport> device = examine_device(driver, ordinal);
    if (!device) {
      report.why = device.error().text;
      return report;
    }
    if (!device->virtual_memory)
      report.why = device->name + " lacks virtual memory management (cuMemMap)";
    report.devices.push_back(*device);
  }
  return report;
}

}  // namespace firn::command
