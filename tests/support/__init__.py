# SPDX-License-Identifier: Apache-2.0
"""What the tests of several rooms share."""

from support import backend as backend
