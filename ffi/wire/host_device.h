// SPDX-License-Identifier: Apache-2.0
// Marks what host and device code share.
#ifndef DMI_WIRE_HOST_DEVICE_H_
#define DMI_WIRE_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define DMI_HOST_DEVICE __host__ __device__
#else
#define DMI_HOST_DEVICE
#endif

#endif  // DMI_WIRE_HOST_DEVICE_H_
