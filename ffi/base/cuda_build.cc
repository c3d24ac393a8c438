// SPDX-License-Identifier: Apache-2.0
// Reads device code out of an ELF file, see the header.
//
// nvcc keeps it in the section .nv_fatbin: containers, each a header and then
// entries, one per architecture, with a header of their own.
#include "base/cuda_build.h"

#include <dlfcn.h>
#include <elf.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string_view>

#ifdef DMI_CUDA
#include <cuda_runtime_api.h>
#endif

namespace dmi::base {
namespace {

struct Container {
  static constexpr uint32_t kMagic = 0xBA55ED50;
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // of the entries
};
static_assert(sizeof(Container) == 16);

struct Entry {
  static constexpr uint16_t kPtx = 1;
  static constexpr uint16_t kElf = 2;
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;  // after the header
  uint32_t unused[3];
  uint32_t arch;
};
static_assert(sizeof(Entry) == 32);

// What lies at `offset`; all of it zero where the bytes end before.
template <typename T>
T At(std::string_view bytes, uint64_t offset) {
  T value{};
  if (offset <= bytes.size() && bytes.size() - offset >= sizeof(T)) {
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
  }
  return value;
}

std::string OwnFile() {
  Dl_info found;
  if (dladdr(reinterpret_cast<const void*>(&ReadCudaBuild), &found) == 0) {
    throw std::runtime_error("dladdr does not know the native module");
  }
  std::ifstream file(found.dli_fname, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (bytes.empty()) {
    throw std::runtime_error(std::string("cannot read ") + found.dli_fname);
  }
  return bytes;
}

std::string_view Section(std::string_view file, std::string_view name) {
  const auto header = At<Elf64_Ehdr>(file, 0);
  const auto section = [&](uint64_t index) {
    return At<Elf64_Shdr>(file, header.e_shoff + index * header.e_shentsize);
  };
  const uint64_t names = section(header.e_shstrndx).sh_offset;
  for (uint16_t i = 0; i < header.e_shnum; ++i) {
    const auto found = section(i);
    if (file.substr(names + found.sh_name).starts_with(name)) {
      return file.substr(found.sh_offset, found.sh_size);
    }
  }
  return {};
}

}  // namespace

CudaBuild ReadCudaBuild() {
  std::set<uint32_t> archs;
  std::set<uint32_t> ptx;
  const std::string file = OwnFile();
  const std::string_view code = Section(file, ".nv_fatbin");
  for (uint64_t at = 0; at < code.size();) {
    const auto container = At<Container>(code, at);
    if (container.magic != Container::kMagic) {
      at += 8;  // padding
      continue;
    }
    at += container.header_bytes;
    const uint64_t end = at + container.bytes;
    while (at < end) {
      const auto entry = At<Entry>(code, at);
      if (entry.kind == Entry::kPtx) ptx.insert(entry.arch);
      if (entry.kind == Entry::kElf) archs.insert(entry.arch);
      if (entry.header_bytes == 0) {
        throw std::runtime_error("cannot read the device code");
      }
      at += entry.header_bytes + entry.bytes;
    }
  }
  CudaBuild build;
  for (uint32_t arch : archs) {
    build.archs.push_back("sm_" + std::to_string(arch));
  }
  for (uint32_t arch : ptx) {
    build.ptx.push_back("compute_" + std::to_string(arch));
  }
#ifdef DMI_CUDA
  int version = 0;
  if (!build.archs.empty() && cudaRuntimeGetVersion(&version) == cudaSuccess) {
    build.cudart = std::to_string(version / 1000) + "." +
                   std::to_string(version % 1000 / 10);
  }
#endif
  return build;
}

}  // namespace dmi::base
